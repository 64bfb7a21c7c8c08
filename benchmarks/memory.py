"""State far larger than the memory limit: an aggregate and a join over `--keys` distinct keys each, and what the process took.

Writes CSV files of two tables, each with every key once and in another random order, and lets the server read them (`--feed
copy`: sends them by COPY instead). One view groups both tables by key, the other joins them. Then every twentieth key is deleted
from both. Both views are checked, by count and checksums, against what plain Python works out. Prints one JSON line: seconds, peak
resident memory (VmHWM), memory shares. The exit code is 1 if an answer is wrong or the peak is above 1.5 times the limit.

    make bench-memory FLAGS='--keys 1000000 --limit 64MB'
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from shared import servers

FILE_ROWS = 500_000
DELETES = 20
UNITS = {"MB": 1 << 20, "GB": 1 << 30}


def size(text):
    """Bytes of `1GB`, `64MB`."""
    return int(text[:-2]) * UNITS[text[-2:].upper()]


def scattered(n, multiplier, offset):
    """0 … n - 1 in an order in which neighbours are far apart."""
    bits = max(n - 1, 1).bit_length()
    mask = (1 << bits) - 1
    half = (bits + 1) // 2
    for i in range(1 << bits):
        k = (i * multiplier + offset) & mask
        k ^= k >> half
        k = (k * multiplier) & mask
        if k < n:
            yield k


def value(table, k):
    """A table's value of a key."""
    return (k * 7919 + 13) % 1_000_003 if table == "a" else (k * 104_729 + 7) % 999_983


def chunks(table, n):
    """A table's rows as CSV texts."""
    lines = []
    for k in scattered(n, 2_654_435_761 if table == "a" else 2_246_822_519, 12_345):
        lines.append(f"{k},{value(table, k)}\n")
        if len(lines) == FILE_ROWS:
            yield "".join(lines)
            lines = []
    if lines:
        yield "".join(lines)


def expected(n, deleted):
    """Rows and checksums of the views."""
    rows = total = mixed = 0
    for k in range(n):
        if deleted and k % DELETES == 0:
            continue
        a, b = value("a", k), value("b", k)
        rows += 1
        total += a + b
        mixed += (a - b) * (k % 97)
    return {"per_key": (rows, 2 * rows, total), "joined": (rows, total, mixed)}


CHECKS = {
    "per_key": "SELECT count(*), sum(n)::bigint, sum(s)::bigint FROM per_key",
    "joined": "SELECT count(*), sum(x + y)::bigint, sum((x - y) * (k % 97))::bigint FROM joined",
}
VIEWS = [
    "CREATE MATERIALIZED VIEW per_key AS SELECT k, count(*) AS n, sum(v) AS s"
    " FROM (SELECT k, v FROM a UNION ALL SELECT k, v FROM b) AS t GROUP BY k",
    "CREATE MATERIALIZED VIEW joined AS SELECT a.k, a.v AS x, b.v AS y FROM a JOIN b ON a.k = b.k",
]


def memory(pid):
    """Resident now and at the peak, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["VmRSS"].split()[0]) // 1024, int(fields["VmHWM"].split()[0]) // 1024


def shares(connection):
    """What the process says that it holds, in MB."""
    rows = connection.execute("SELECT what, used_bytes FROM levee_catalog.memory").fetchall()
    return {what: used >> 20 for what, used in rows if used}


class Limited(servers.Levee):
    """A server with a memory limit."""

    def __init__(self, binary, directory, limit):
        super().__init__(binary, directory)
        self.limit = limit

    def command(self):
        return super().command() + ["--memory-limit", self.limit]


def create(connection, files, feed):
    """The tables and views, before any row."""
    for table in "ab":
        source = f" WITH (connector = 'file', path = '{files}/{table}') FORMAT PLAIN ENCODE CSV"
        connection.execute(f"CREATE TABLE {table} (k bigint, v bigint)" + (source if feed == "file" else ""))
    for view in VIEWS:
        connection.execute(view)


def feed_rows(connection, files, args, report):
    """Hands all rows over; COPY in transactions of one file."""
    for table in "ab":
        (files / table).mkdir(exist_ok=True)
    tables = {table: chunks(table, args.keys) for table in "ab"}
    number = 0
    while tables:
        for table in list(tables):
            text = next(tables[table], None)
            if text is None:
                del tables[table]
            elif args.feed == "file":
                hidden = files / f"{number}.tmp"
                hidden.write_text(text)
                hidden.rename(files / table / f"{number:06}.csv")
            else:
                with connection.cursor().copy(f"COPY {table} FROM STDIN WITH (FORMAT csv)") as copying:
                    copying.write(text)
        number += 1
        report(number)


def settle(connection, wanted, report, seconds):
    """Waits until both views have `wanted` rows."""
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        counts = [connection.execute(f"SELECT count(*) FROM {view}").fetchone()[0] for view in CHECKS]
        report(counts)
        if counts == [wanted, wanted]:
            return
        time.sleep(2)
    raise SystemExit(f"the views hold {counts} rows where {wanted} are wanted")


def main():
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levee", required=True)
    parser.add_argument("--keys", type=int, default=20_000_000)
    parser.add_argument("--limit", default="1GB")
    parser.add_argument("--feed", choices=["file", "copy"], default="file")
    parser.add_argument("--seconds", type=int, default=1200, help="time allowed for each part")
    args = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory(prefix="levee-memory-") as directory:
        files = Path(directory) / "files"
        files.mkdir()
        with Limited(args.levee, directory, args.limit) as server:
            connection = server.connect()
            started = time.monotonic()

            def report(what):
                now, peak = memory(server.process.pid)
                line = {"s": round(time.monotonic() - started), "at": what, "rss_mb": now, "peak_mb": peak}
                print(json.dumps(line | {"memory": shares(connection)}), file=sys.stderr, flush=True)

            for table in "ab":
                (files / table).mkdir()
            create(connection, files, args.feed)
            feed_rows(connection, files, args, report)
            settle(connection, args.keys, report, args.seconds)
            fed = time.monotonic() - started
            check(connection, expected(args.keys, False), wrong)
            step = max(args.keys // 20, DELETES)
            for low in range(0, args.keys, step):
                for table in "ab":
                    connection.execute(
                        f"DELETE FROM {table} WHERE k % {DELETES} = 0 AND k >= {low} AND k < {low + step}"
                    )
                report(f"deleted below {low + step}")
            after = expected(args.keys, True)
            settle(connection, after["joined"][0], report, args.seconds)
            check(connection, after, wrong)
            _, peak = memory(server.process.pid)
            result = {
                "benchmark": "memory",
                "keys": args.keys,
                "limit_mb": size(args.limit) >> 20,
                "peak_mb": peak,
                "fed_s": round(fed, 1),
                "s": round(time.monotonic() - started, 1),
                "wrong": wrong,
                "memory": shares(connection),
            }
            print(json.dumps(result))
            if wrong or peak > 1.5 * (size(args.limit) >> 20):
                sys.exit(1)


def check(connection, answers, wrong):
    """Compares the views with the answers."""
    for view, query in CHECKS.items():
        found = connection.execute(query).fetchone()
        if tuple(found) != answers[view]:
            wrong.append({view: [list(found), list(answers[view])]})


if __name__ == "__main__":
    main()
