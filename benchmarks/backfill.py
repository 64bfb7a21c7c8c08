"""How fast a new view takes what its table already holds, and what that costs a view that is running.

Fills a table of `--rows` rows, then creates `count(*)` and a group by of a million groups over it, one after the other, while a
session inserts single rows elsewhere and reads a view that holds them. Prints one JSON line a view: rows a second, and the 99th
percentile of the running view's freshness before and while. The exit code is 1 below 1 and 0.4 million rows a second, or if the
percentile grows by more than 50 ms.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from shared import servers

CHUNK = 500_000
VIEWS = {
    "count": ("SELECT count(*) AS n FROM big", 1_000_000),
    "group by": ("SELECT g, count(*) AS n, sum(v) AS s FROM big GROUP BY g", 400_000),
}
GROWTH_MS_MAX = 50


class Probe(threading.Thread):
    """Inserts a row and reads the view that holds it, over and over."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.connection = server.connect()
        self.times = []
        self.ended = threading.Event()

    def run(self):
        number = 0
        while not self.ended.is_set():
            number += 1
            started = time.monotonic()
            self.connection.execute(f"INSERT INTO small VALUES ({number}, {number % 10})")
            self.connection.execute("SELECT sum(n) FROM running").fetchone()
            self.times.append((time.monotonic() - started) * 1000)
            time.sleep(0.01)

    def p99(self):
        """In milliseconds, of what was measured since the last call."""
        times, self.times = sorted(self.times), []
        return round(times[int(len(times) * 0.99)], 1) if times else None


def fill(connection, rows, groups):
    """The table, in transactions of bounded size."""
    connection.execute("CREATE TABLE big (id bigint, g bigint, v bigint)")
    for low in range(0, rows, CHUNK):
        high = min(low + CHUNK, rows)
        connection.execute(
            f"INSERT INTO big SELECT i, (i::bigint * 7919) % {groups}, i % 1000 FROM generate_series({low}, {high - 1}) AS t(i)"
        )


def main():
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levee", required=True)
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--groups", type=int, default=1_000_000)
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="levee-backfill-") as directory:
        with servers.Levee(args.levee, directory) as server:
            connection = server.connect()
            connection.execute("CREATE TABLE small (k bigint, g bigint)")
            connection.execute("CREATE MATERIALIZED VIEW running AS SELECT g, count(*) AS n FROM small GROUP BY g")
            fill(connection, args.rows, args.groups)
            time.sleep(5)
            probe = Probe(server)
            probe.start()
            time.sleep(5)
            before = probe.p99()
            for name, (query, least) in VIEWS.items():
                started = time.monotonic()
                connection.execute(f"CREATE MATERIALIZED VIEW v{len(name)} AS {query}")
                seconds = time.monotonic() - started
                during = probe.p99()
                rate = args.rows / seconds
                line = {
                    "benchmark": "backfill",
                    "view": name,
                    "rows": args.rows,
                    "s": round(seconds, 2),
                    "rows_per_s": round(rate),
                    "p99_ms_before": before,
                    "p99_ms_during": during,
                }
                print(json.dumps(line), flush=True)
                failed |= rate < least or (during or 0) > (before or 0) + GROWTH_MS_MAX
                rows = connection.execute(f"SELECT sum(n)::bigint FROM v{len(name)}").fetchone()[0]
                if rows != args.rows:
                    sys.exit(f"{name}: {rows} rows counted")
            probe.ended.set()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
