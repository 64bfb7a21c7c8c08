"""How fresh views stay under load, and beside a view that is slow, one that explodes, and a sink whose target is gone.

What a table with ten ordinary views takes is measured first: rows copied as fast as they go, until all views have them. Then rows
run in steadily, and the time from an INSERT until a view shows it is measured: at half of that rate, where the 99th percentile
may be at most 100 ms; and at a quarter (or at `--rate`) alone, then beside each of the three, where it may grow by 20 ms or a tenth.
One JSON line per case; the exit code is 1 if a limit is passed.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from many import copy, percentile
from shared import servers

VIEWS = 10
GROUPS = 1_000
GROWTH_MS = 20
GROWTH = 0.1
HALF_MS = 100
PART_ROWS = 10_000
BATCHES_PER_S = 20


def rows(first, n):
    """Rows for COPY."""
    return "".join(f"{k}\t{k % GROUPS}\t{k * 7919 % 1000003}\n" for k in range(first, first + n))


class Load(threading.Thread):
    """Copies rows until it is stopped, twenty batches a second."""

    def __init__(self, server, rate):
        super().__init__()
        self.connection = server.connect()
        batch = max(1, rate // BATCHES_PER_S)
        # Made before, so that the client takes little of the machine.
        self.parts = [rows(n * batch, batch) for n in range(BATCHES_PER_S)]
        self.stopped = threading.Event()

    def run(self):
        n, due = 0, time.monotonic()
        while not self.stopped.is_set():
            copy(self.connection, "t", self.parts[n % len(self.parts)])
            n += 1
            due += 1 / BATCHES_PER_S
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


@contextmanager
def serving(levee):
    """A fresh server with the table and the ordinary views, and a connection to it."""
    with tempfile.TemporaryDirectory(prefix="levee-blast-") as directory:
        server = servers.Levee(levee, directory)
        server.start()
        try:
            connection = server.connect()
            connection.execute("CREATE TABLE t (k bigint, g int, x bigint)")
            for v in range(VIEWS):
                query = f"SELECT g, count(*) AS n, sum(x) AS s FROM t WHERE g % {VIEWS} <> {v} GROUP BY g"
                connection.execute(f"CREATE MATERIALIZED VIEW v{v} AS {query}")
            yield server, connection
        finally:
            server.kill()


@contextmanager
def loaded(server, rate):
    """Rows come steadily meanwhile."""
    load = Load(server, rate)
    load.start()
    try:
        yield
    finally:
        load.stopped.set()
        load.join()


def capacity(levee, seconds):
    """Rows a second that the table takes and all views show."""
    parts = [rows(first, PART_ROWS) for first in range(0, 20 * PART_ROWS, PART_ROWS)]
    with serving(levee) as (_, connection):
        for part in parts:
            copy(connection, "t", part)
        started, n = time.monotonic(), 0
        while time.monotonic() - started < seconds:
            copy(connection, "t", parts[n % len(parts)])
            n += 1
        for v in range(VIEWS):
            # Answers once the view is complete through the last COPY.
            connection.execute(f"SELECT sum(n) FROM v{v}").fetchall()
        rate = n * PART_ROWS / (time.monotonic() - started)
    print(json.dumps({"bench": "capacity", "views": VIEWS, "rows_per_s": round(rate)}), flush=True)
    return rate


def half(levee, rate, seconds):
    """Freshness at half of the capacity."""
    with serving(levee) as (server, connection), loaded(server, rate):
        freshness(connection, 2)
        taken = freshness(connection, seconds)
    p50, p99 = percentile(taken, 0.5), percentile(taken, 0.99)
    line = {"bench": "freshness", "rate": rate, "p50_ms": round(p50, 1), "p99_ms": round(p99, 1), "samples": len(taken)}
    print(json.dumps({**line, "ok": p99 <= HALF_MS}), flush=True)
    return p99 <= HALF_MS


def measure(levee, rate, seconds, case):
    """One case on a fresh server: alone, then beside."""
    with serving(levee) as (server, connection), loaded(server, rate):
        freshness(connection, 2)
        alone = freshness(connection, seconds)
        background = server.connect()
        background.execute("SET background_ddl = on")
        with tempfile.TemporaryDirectory(prefix="levee-blast-pg-") as pg:
            end = case(background, pg) if case is sink_gone else case(background)
            beside = freshness(connection, seconds)
            end()
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
    parser.add_argument("--rate", type=int, help="rows a second beside the three; default: a quarter of what is measured")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", choices=["slow", "explodes", "sink_gone"])
    given = parser.parse_args()
    cases = [c for c in (slow, explodes, sink_gone) if given.only in (None, c.__name__)]
    rate, results = given.rate, []
    if rate is None:
        full = capacity(given.levee, given.seconds)
        results.append(half(given.levee, int(full / 2), given.seconds))
        rate = int(full / 4)
    results += [measure(given.levee, rate, given.seconds, case) for case in cases]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
