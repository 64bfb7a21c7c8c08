UPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1;
