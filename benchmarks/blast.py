"""Blast radius inside one process: how fresh views stay beside one that is slow, one that explodes, and a sink whose target is gone.

A steady stream of rows (about a quarter of what the machine takes; `--rate`) runs into a table with ordinary views. The time from
an INSERT until a view shows it is measured alone, then beside each of the three. One JSON line per case; the exit code is 1 if the
99th percentile grows by more than a tenth and 20 ms.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from many import copy, percentile
from shared import servers

VIEWS = 10
GROUPS = 1_000
GROWTH_MS = 20
GROWTH = 0.1


def rows(first, n):
    """Rows for COPY."""
    return "".join(f"{k}\t{k % GROUPS}\t{k * 7919 % 1000003}\n" for k in range(first, first + n))


class Load(threading.Thread):
    """Copies rows until it is stopped, twenty batches a second."""

    def __init__(self, server, rate):
        super().__init__()
        self.connection = server.connect()
        self.batch = max(1, rate // 20)
        self.stopped = threading.Event()

    def run(self):
        key, due = 0, time.monotonic()
        while not self.stopped.is_set():
            copy(self.connection, "t", rows(key, self.batch))
            key += self.batch
            due += 0.05
            time.sleep(max(0, due - time.monotonic()))


def freshness(connection, seconds):
    """Milliseconds from an INSERT's start until a read of a view that has it."""
    taken, end, n = [], time.monotonic() + seconds, 0
    while time.monotonic() < end:
        started = time.monotonic()
        connection.execute(f"INSERT INTO t VALUES (-1, {n % GROUPS}, 1)")
        connection.execute(f"SELECT count(*) FROM v{n % VIEWS}").fetchall()
        taken.append((time.monotonic() - started) * 1000)
        n += 1
        time.sleep(0.02)
    return taken


def slow(connection):
    """A view whose expression takes milliseconds a row."""
    expression = "length(regexp_replace(repeat('ab', 50000) || k::text, '[a-z]+c', 'x', 'g'))"
    connection.execute(f"CREATE MATERIALIZED VIEW bad AS SELECT k, {expression} AS n FROM t")
    return lambda: connection.execute("DROP MATERIALIZED VIEW bad")


def explodes(connection):
    """A view that joins many to many: thousands of rows for each that comes."""
    connection.execute("CREATE MATERIALIZED VIEW bad AS SELECT a.k AS a, b.k AS b FROM t a JOIN t b ON a.g % 3 = b.g % 3")
    return lambda: connection.execute("DROP MATERIALIZED VIEW bad")


def sink_gone(connection, directory):
    """A sink whose target dies."""
    target = servers.Postgres(directory)
    target.start()
    with target.connect() as there:
        there.execute("CREATE TABLE target (g int PRIMARY KEY, n bigint)")
    connection.execute("CREATE MATERIALIZED VIEW counted AS SELECT g, count(*) AS n FROM t GROUP BY g")
    options = f"host = '127.0.0.1', port = '{target.port}', user = 'postgres', dbname = 'postgres'"
    sink = f"CREATE SINK gone FROM counted WITH (connector = 'postgres', {options}, table.name = 'target', primary_key = 'g')"
    connection.execute(sink)
    target.kill()
    return lambda: connection.execute("DROP SINK gone")


def measure(levee, rate, seconds, case):
    """One case on a fresh server: alone, then beside."""
    with tempfile.TemporaryDirectory(prefix="levee-blast-") as directory:
        server = servers.Levee(levee, directory)
        server.start()
        load = None
        try:
            connection = server.connect()
            connection.execute("CREATE TABLE t (k bigint, g int, x bigint)")
            for v in range(VIEWS):
                query = f"SELECT g, count(*) AS n, sum(x) AS s FROM t WHERE g % {VIEWS} <> {v} GROUP BY g"
                connection.execute(f"CREATE MATERIALIZED VIEW v{v} AS {query}")
            load = Load(server, rate)
            load.start()
            freshness(connection, 2)
            alone = freshness(connection, seconds)
            background = server.connect()
            background.execute("SET background_ddl = on")
            with tempfile.TemporaryDirectory(prefix="levee-blast-pg-") as pg:
                end = case(background, pg) if case is sink_gone else case(background)
                beside = freshness(connection, seconds)
                end()
        finally:
            if load is not None:
                load.stopped.set()
                load.join()
            server.kill()
    a, b = percentile(alone, 0.99), percentile(beside, 0.99)
    ok = b <= a + max(a * GROWTH, GROWTH_MS)
    p50 = [round(percentile(alone, 0.5), 1), round(percentile(beside, 0.5), 1)]
    line = {"bench": "blast", "case": case.__name__, "rate": rate, "p50_ms": p50, "p99_ms": [round(a, 1), round(b, 1)]}
    print(json.dumps({**line, "samples": [len(alone), len(beside)], "ok": ok}), flush=True)
    return ok


def main():
    """Runs the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levee", required=True, help="the levee binary")
    parser.add_argument("--rate", type=int, default=10_000, help="rows a second")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", choices=["slow", "explodes", "sink_gone"])
    given = parser.parse_args()
    cases = [c for c in (slow, explodes, sink_gone) if given.only in (None, c.__name__)]
    results = [measure(given.levee, given.rate, given.seconds, case) for case in cases]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
