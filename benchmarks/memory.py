"""State far larger than the memory limit: an aggregate and a join over `--keys` distinct keys each, and what the process took.

Writes CSV files of two tables, each with every key once and in another random order, and lets the server read them (`--feed
copy`: sends them by COPY instead). One view groups both tables by key, the other joins them. Then every twentieth key is deleted
from both. Both views are checked, by count and checksums, against what plain Python works out. Prints one JSON line: seconds, peak
resident memory (VmHWM), memory shares. The exit code is 1 if an answer is wrong or the peak is above 1.5 times the limit.

A second part, `--only reader`, makes a view with a result of `--result-mb` and reads it by a client that is slow, as a query and as
COPY: the process must not grow by more than a sixteenth of the result, however long that takes.

    make bench-memory FLAGS='--keys 1000000 --limit 64MB'
    make bench-memory FLAGS='--only reader'
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

FILE_ROWS = 500_000
DELETES = 20
DELETE_PARTS = 4
UNITS = {"MB": 1 << 20, "GB": 1 << 30}
PAUSE_S = 2
ROW_BYTES = 1000


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
    """Waits until both views have `wanted` rows; counts them, which reads all of them, only when the views keep up."""
    started = time.monotonic()
    counts = None
    while time.monotonic() - started < seconds:
        behind = connection.execute("SELECT max(lag_epochs) FROM levee_catalog.regions").fetchone()[0]
        if behind == 0:
            counts = [connection.execute(f"SELECT count(*) FROM {view}").fetchone()[0] for view in CHECKS]
            if counts == [wanted, wanted]:
                return
        report(f"{behind} epochs behind, {counts}")
        time.sleep(PAUSE_S)
    raise SystemExit(f"the views hold {counts} rows where {wanted} are wanted")


def state(args):
    """State far larger than the limit."""
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
            report(f"fed, {len(wrong)} wrong")
            step = max(args.keys // DELETE_PARTS, DELETES)
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
            return not wrong and peak <= 1.5 * (size(args.limit) >> 20)


def slow_reader(connection, statement, rows, seconds):
    """Reads a result evenly over `seconds`; answers the rows read."""
    read = 0
    started = time.monotonic()
    with connection.cursor() as cursor:
        if statement.startswith("COPY"):
            with cursor.copy(statement) as copying:
                for piece in copying:
                    read += bytes(piece).count(b"\n")
                    keep_pace(started, read / rows * seconds)
        else:
            for _ in cursor.stream(statement, size=100):
                read += 1
                if read % 100 == 0:
                    keep_pace(started, read / rows * seconds)
    return read


def keep_pace(started, due):
    """Waits until `due` seconds after `started`."""
    ahead = due - (time.monotonic() - started)
    if ahead > 0.01:
        time.sleep(ahead)


def reader(args):
    """A large result, read slowly."""
    rows = args.result_mb * 1_000_000 // ROW_BYTES
    with tempfile.TemporaryDirectory(prefix="levee-memory-") as directory:
        files = Path(directory) / "files"
        files.mkdir()
        for number, low in enumerate(range(0, rows, 50_000)):
            lines = (f"{k},{str(k) * (ROW_BYTES // len(str(k)))}\n" for k in range(low, min(low + 50_000, rows)))
            (files / f"{number:06}.csv").write_text("".join(lines))
        with Limited(args.levee, directory, args.limit) as server:
            connection = server.connect()
            connection.execute(
                f"CREATE TABLE t (k bigint, v text) WITH (connector = 'file', path = '{files}') FORMAT PLAIN ENCODE CSV"
            )
            connection.execute("CREATE MATERIALIZED VIEW wide AS SELECT k, v FROM t")
            while connection.execute("SELECT count(*) FROM wide").fetchone()[0] < rows:
                time.sleep(PAUSE_S)
            # What building has freed is given back within seconds.
            time.sleep(5 * PAUSE_S)
            before = memory(server.process.pid)[0]
            grown, counts = 0, []
            stop = threading.Event()

            def watch():
                nonlocal grown
                while not stop.wait(0.1):
                    grown = max(grown, memory(server.process.pid)[0] - before)

            watching = threading.Thread(target=watch)
            watching.start()
            for statement in ["SELECT * FROM wide", "COPY (SELECT * FROM wide) TO STDOUT"]:
                counts.append(slow_reader(connection, statement, rows, args.read_s))
            stop.set()
            watching.join()
            result = {
                "benchmark": "memory-reader",
                "result_mb": args.result_mb,
                "limit_mb": size(args.limit) >> 20,
                "before_mb": before,
                "grown_mb": grown,
                "rows_read": counts,
                "memory": shares(connection),
            }
            print(json.dumps(result))
            return counts == [rows, rows] and grown <= args.result_mb // 16


def main():
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levee", required=True)
    parser.add_argument("--only", choices=["state", "reader"], help="one part of the two")
    parser.add_argument("--result-mb", type=int, default=1000, help="what the slow client reads")
    parser.add_argument("--read-s", type=int, default=30, help="how long it takes for that")
    parser.add_argument("--keys", type=int, default=20_000_000)
    parser.add_argument("--limit", default="1GB")
    parser.add_argument("--feed", choices=["file", "copy"], default="file")
    parser.add_argument("--seconds", type=int, default=1200, help="time allowed for each part")
    args = parser.parse_args()
    parts = {"state": state, "reader": reader}
    good = [part(args) for name, part in parts.items() if args.only in (None, name)]
    if not all(good):
        sys.exit(1)


def check(connection, answers, wrong):
    """Compares the views with the answers."""
    for view, query in CHECKS.items():
        found = connection.execute(query).fetchone()
        if tuple(found) != answers[view]:
            wrong.append({view: [list(found), list(answers[view])]})


if __name__ == "__main__":
    main()
