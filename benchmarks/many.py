"""Many views in one process: what they cost idle, what one more costs, how soon a restart serves, how fresh they stay under load.

Makes five tables and `--views` mixed views over them (filters, aggregates, joins, top-N, views over views) and prints one JSON
line per figure: time to create the last tenth of the views, resident memory, CPU while idle, time from kill -9 until every kind
of view answers. Then, with `--fresh-views` views on a fresh server, a steady stream of rows into all tables while a session
inserts a row and reads a view that holds it: the 99th percentile of that time. The exit code is 1 if a figure is above its limit.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from shared import servers

TABLES = 5
ROWS = 2_000
GROUPS = 50
# Figures at which the exit code is 1; for 500 views, and 100 under 20,000 rows a second.
LIMITS = {
    "create_p50_ms": 200,
    "idle_cpu_percent": 5,
    "rss_mb": 2048,
    "restart_s": 10,
    "fresh_p99_ms": 250,
}


def view_sql(number):
    """The statement that makes view `number`; each kind reads another table, every fifth a view before it."""
    table = f"t{(number // 5) % TABLES}"
    other = f"t{(number // 5 + 1) % TABLES}"
    queries = [
        f"SELECT k, x FROM {table} WHERE x % 10 = {number % 10}",
        f"SELECT g, count(*) AS n, sum(x) AS s, max(x) AS hi FROM {table} WHERE k > {number} GROUP BY g",
        f"SELECT a.k, a.x + b.x AS x FROM {table} AS a JOIN {other} AS b ON a.k = b.k WHERE a.g = {number % GROUPS}",
        f"SELECT k, x FROM {table} WHERE g <> {number % GROUPS} ORDER BY x DESC, k LIMIT 10",
        f"SELECT count(*) AS groups, sum(n) AS n FROM v{number - 3}",
    ]
    return f"CREATE MATERIALIZED VIEW v{number} AS {queries[number % 5]}"


def rows(first, n):
    """Rows for COPY: key, group, value."""
    return "".join(f"{k}\t{k % GROUPS}\t{k * 7919 % 1000003}\n" for k in range(first, first + n))


def copy(connection, table, text):
    """COPY in one transaction."""
    with connection.cursor().copy(f"COPY {table} FROM STDIN") as copying:
        copying.write(text)


def percentile(values, share):
    """The value below which that share lies."""
    ordered = sorted(values)
    return ordered[round((len(ordered) - 1) * share)]


def cpu_s(pid):
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status(pid, name):
    """A line of /proc/PID/status in kB, or a plain number."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise KeyError(name)


class Report:
    """Prints figures, remembers whether one was above its limit."""

    def __init__(self, limited):
        self.limited = limited
        self.failed = False

    def figure(self, name, value, **more):
        """One JSON line."""
        line = {"bench": "many", "figure": name, "value": round(value, 2), **more}
        if self.limited and name in LIMITS:
            line["limit"] = LIMITS[name]
            line["ok"] = value <= LIMITS[name]
            self.failed |= not line["ok"]
        print(json.dumps(line), flush=True)


def make_tables(connection):
    """The tables with their first rows."""
    for table in range(TABLES):
        connection.execute(f"CREATE TABLE t{table} (k bigint, g int, x bigint)")
        copy(connection, f"t{table}", rows(0, ROWS))


def make_views(connection, n):
    """Makes views; answers the time that each took, in milliseconds."""
    taken = []
    for number in range(n):
        started = time.monotonic()
        connection.execute(view_sql(number))
        taken.append((time.monotonic() - started) * 1000)
    return taken


def answers(connection, n):
    """Rows of some views of each kind and age, for comparing before and after."""
    picked = sorted({*range(min(n, 10)), *range(max(0, n - 10), n)})
    return {v: sorted(connection.execute(f"SELECT * FROM v{v}").fetchall()) for v in picked}


def idle(report, levee, directory, n, seconds):
    """Creation, memory, idle CPU and restart with `n` views."""
    server = servers.Levee(levee, directory)
    server.start()
    try:
        connection = server.connect()
        make_tables(connection)
        taken = make_views(connection, n)
        last = taken[-max(1, n // 10) :]
        report.figure("create_p50_ms", percentile(last, 0.5), views=n, max_ms=round(max(last), 1))
        time.sleep(3)
        pid = server.process.pid
        before, started = cpu_s(pid), time.monotonic()
        time.sleep(seconds)
        share = (cpu_s(pid) - before) / (time.monotonic() - started) * 100
        report.figure("idle_cpu_percent", share, views=n, seconds=seconds)
        threads = status(pid, "Threads")
        files = len(os.listdir(f"/proc/{pid}/fd"))
        report.figure("rss_mb", status(pid, "VmRSS") / 1024, views=n, threads=threads, files=files)
        for table in range(TABLES):
            copy(connection, f"t{table}", rows(ROWS, 100))
        wanted = answers(connection, n)
        server.kill()
        started = time.monotonic()
        accepts = server.start()
        found = answers(server.connect(), n)
        report.figure("restart_s", time.monotonic() - started, views=n, accepts_s=round(accepts, 2))
        if found != wanted:
            raise SystemExit("views answer otherwise after the restart")
    finally:
        server.kill()


def load(server, rate, stop, late):
    """Copies `rate` rows a second into the tables in turn, ten batches a second each."""
    connection = server.connect()
    batch = max(1, rate // (TABLES * 10))
    key, due = 10 * ROWS, time.monotonic()
    while not stop.is_set():
        for table in range(TABLES):
            copy(connection, f"t{table}", rows(key, batch))
        key += batch
        due += 0.1
        late.append(time.monotonic() - due)
        time.sleep(max(0, due - time.monotonic()))


def fresh(report, levee, directory, n, rate, seconds):
    """Freshness of `n` views under load."""
    server = servers.Levee(levee, directory)
    server.start()
    try:
        connection = server.connect()
        make_tables(connection)
        make_views(connection, n)
        stop, late, taken = threading.Event(), [], []
        loader = threading.Thread(target=load, args=(server, rate, stop, late))
        pid = server.process.pid
        before, started = cpu_s(pid), time.monotonic()
        loader.start()
        chosen = random.Random(1)
        key = -1
        while time.monotonic() - started < seconds:
            view = chosen.randrange(n)
            table = (view // 5) % TABLES
            since = time.monotonic()
            connection.execute(f"INSERT INTO t{table} VALUES ({key}, 1, 1)")
            connection.execute(f"SELECT count(*) FROM v{view}").fetchall()
            taken.append((time.monotonic() - since) * 1000)
            key -= 1
            time.sleep(0.02)
        stop.set()
        loader.join()
        cpu = (cpu_s(pid) - before) / (time.monotonic() - started) * 100
        report.figure("fresh_p50_ms", percentile(taken, 0.5), views=n, rows_per_s=rate)
        more = {"samples": len(taken), "cpu_percent": round(cpu), "late_ms": round(max(late) * 1000)}
        report.figure("fresh_p99_ms", percentile(taken, 0.99), views=n, rows_per_s=rate, **more)
        report.figure("fresh_rss_mb", status(pid, "VmRSS") / 1024, views=n)
    finally:
        server.kill()


def main():
    """Runs both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levee", required=True, help="the levee binary")
    parser.add_argument("--views", type=int, default=500)
    parser.add_argument("--idle-seconds", type=float, default=10)
    parser.add_argument("--fresh-views", type=int, default=100)
    parser.add_argument("--rate", type=int, default=20_000, help="rows a second")
    parser.add_argument("--fresh-seconds", type=float, default=30)
    parser.add_argument("--no-limits", action="store_true", help="print figures only")
    given = parser.parse_args()
    report = Report(not given.no_limits)
    if given.views:
        with tempfile.TemporaryDirectory(prefix="levee-many-") as directory:
            idle(report, given.levee, directory, given.views, given.idle_seconds)
    if given.fresh_views:
        with tempfile.TemporaryDirectory(prefix="levee-many-") as directory:
            fresh(report, given.levee, directory, given.fresh_views, given.rate, given.fresh_seconds)
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
