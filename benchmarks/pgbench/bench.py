"""pgbench's own scripts against Levee and against PostgreSQL on the same machine: transactions a second and failures.

`make bench-pgbench`; FLAGS='--scale N --clients N --seconds N --only tpcb'. One JSON line a run, then a table. A failure is a
transaction that pgbench gave up on (an error of any kind); there must be none.

PostgreSQL runs with its defaults: both make a commit durable before they answer it.
"""

import argparse
import glob
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "sql-tests", "clients"))
sys.path.insert(0, os.path.join(HERE, "..", "..", "sql-tests", "clients", "isolation"))
import run as clients  # noqa: E402
from interleave import Postgres  # noqa: E402

# name, pgbench's options
RUNS = [
    ("select, simple", ["-S"]),
    ("select, prepared", ["-S", "-M", "prepared"]),
    ("tpcb, simple", []),
    ("tpcb, extended", ["-M", "extended"]),
    ("tpcb, prepared", ["-M", "prepared"]),
    ("simple-update", ["-N"]),
    ("one hot row", ["-f", os.path.join(HERE, "hot.sql")]),
]


def pgbench():
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/pgbench"))
    if not found:
        raise SystemExit("pgbench is missing: run make setup")
    return found[-1]


def call(port, options):
    command = [pgbench(), "-h", "127.0.0.1", "-p", str(port), "-U", "test", *options, "dev"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def measure(port, options, arguments):
    clients_n = str(arguments.clients)
    common = ["-n", "-c", clients_n, "-j", "2", "-T", str(arguments.seconds), "-s", str(arguments.scale)]
    code, out = call(port, common + options)
    tps = re.search(r"^tps = ([0-9.]+)", out, re.M)
    failed = re.search(r"number of failed transactions: (\d+)", out)
    latency = re.search(r"latency average = ([0-9.]+)", out)
    aborted = len(re.findall(r"client \d+ (?:script \d+ )?aborted", out))
    result = {
        "tps": float(tps.group(1)) if tps else 0.0,
        "latency_ms": float(latency.group(1)) if latency else None,
        "failed": int(failed.group(1)) if failed else None,
        "clients_aborted": aborted,
    }
    if code != 0 or aborted:
        result["output"] = out[-600:]
    return result


def books(port):
    """What TPC-B must keep equal: the balances of accounts, tellers and branches, and the sum of the history."""
    import psycopg

    with psycopg.connect(f"host=127.0.0.1 port={port} user=test dbname=dev", autocommit=True) as c:
        return c.execute(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), "
            "(SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)").fetchone()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--only", default="")
    parser.add_argument("--levee", help="the binary")
    arguments = parser.parse_args()
    if arguments.levee:
        os.environ["LEVEE_BIN"] = arguments.levee
    levee, postgres = clients.Server(), Postgres(durable=True)
    table, bad = [], 0
    try:
        for name, port in (("levee", levee.pg), ("postgres", postgres.port)):
            code, out = call(port, ["-i", "-q", "-s", str(arguments.scale)])
            print(json.dumps({"bench": "pgbench -i", "server": name, "ok": code == 0}))
            if code != 0:
                raise SystemExit(f"pgbench -i fails on {name}:\n{out}")
        for name, options in RUNS:
            if arguments.only not in name:
                continue
            row = [name]
            for server, port in (("levee", levee.pg), ("postgres", postgres.port)):
                before = books(port)
                result = measure(port, options, arguments)
                if name.startswith("tpcb"):
                    moved = {after - then for after, then in zip(books(port), before)}
                    result["books"] = "balanced" if len(moved) == 1 else f"do not balance: {moved}"
                    bad += len(moved) != 1
                print(json.dumps({"bench": f"pgbench {name}", "server": server, "clients": arguments.clients, **result}), flush=True)
                if server == "levee" and (result["failed"] != 0 or result["clients_aborted"]):
                    bad += 1
                row.append(result)
            table.append(row)
    finally:
        postgres.stop()
        levee.stop()
        levee.remove()
    print(f"\n{'':20} {'Levee tps':>10} {'failed':>7} {'PostgreSQL tps':>15} {'failed':>7}")
    for name, ours, theirs in table:
        print(f"{name:20} {ours['tps']:10.0f} {ours['failed']!s:>7} {theirs['tps']:15.0f} {theirs['failed']!s:>7}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
