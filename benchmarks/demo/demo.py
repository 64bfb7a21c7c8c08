"""The flights of New York, 2013, streamed into six live views.

Starts a server on a fresh directory, loads planes, airlines, airports and weather, makes six materialized views over the
still empty flights, then copies the year's 336,776 flights in, in time order, while a second connection reads a view. At the
end every view is checked against values worked out from the CSV files in plain Python.

On a terminal it shows a table that changes, then stays up with a psql line to try. Elsewhere it prints plain lines and ends;
the exit code is 0 if all answers were right.
"""

import argparse
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import expected, flights, servers, views

ROWS_PER_COPY = 1_000
REFRESH_S = 0.2
SHOWN_ROWS = 16
BAR_WIDTH = 40
LIVE = "SELECT carrier, days, flights, minutes, worst FROM carriers ORDER BY flights DESC, carrier"


class Screen:
    """A progress bar and a table on a terminal, a line now and then elsewhere."""

    def __init__(self, live):
        self.live = live
        self.drawn = 0
        self.said = 0

    def show(self, done, total, moment, seconds, rows):
        """Draws the state; `rows` are those of the live view."""
        rate = done / seconds if seconds > 0 else 0
        if not self.live:
            if done >= self.said:
                self.said += total // 10
                print(f"{done:>7} flights, {moment[:10]}, {rate:,.0f} a second, {len(rows)} carriers", flush=True)
            return
        filled = BAR_WIDTH * done // total
        lines = [f"  {'█' * filled}{'░' * (BAR_WIDTH - filled)} {moment[:10]}  {done:,} flights  {rate:,.0f}/s", ""]
        lines.append(f"  {'carrier':<8}{'days':>6}{'flights':>10}{'minutes late':>14}{'worst':>7}")
        for carrier, days, count, minutes, worst in rows[:SHOWN_ROWS]:
            lines.append(f"  {carrier:<8}{days:>6}{count:>10}{blank(minutes):>14}{blank(worst):>7}")
        up = f"\x1b[{self.drawn}A" if self.drawn else ""
        sys.stdout.write(up + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()
        self.drawn = len(lines)


def blank(value):
    """A number, or nothing for NULL."""
    return "" if value is None else str(value)


class Stream(threading.Thread):
    """Copies the flights in, chunk by chunk, on its own connection."""

    def __init__(self, connection, lines):
        super().__init__(name="stream")
        self.connection = connection
        self.lines = lines
        self.done = 0
        self.moment = "2013-01-01"
        self.error = None

    def run(self):
        try:
            for start in range(0, len(self.lines), ROWS_PER_COPY):
                chunk = self.lines[start : start + ROWS_PER_COPY]
                flights.copy_flights(self.connection, chunk)
                self.moment = chunk[-1].rsplit(",", 1)[1]
                self.done += len(chunk)
        except Exception as error:
            self.error = error


def say(text):
    """A line of progress."""
    print(text, flush=True)


def make(connection, data):
    """Tables, dimensions, views."""
    for ddl in flights.TABLES.values():
        connection.execute(ddl)
    for table in flights.DIMENSIONS:
        flights.copy_dimension(connection, data, table)
        count = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        say(f"{table}: {count:,} rows")
    for view in views.DEMO:
        connection.execute(view.create())
    say(f"{len(views.DEMO)} materialized views: {', '.join(view.name for view in views.DEMO)}")


def stream(server, lines, screen):
    """Copies while showing; answers the seconds."""
    started = time.monotonic()
    writer = Stream(server.connect(), lines)
    reader = server.connect()
    writer.start()
    while writer.is_alive():
        writer.join(REFRESH_S)
        rows = reader.execute(LIVE).fetchall()
        screen.show(writer.done, len(lines), writer.moment, time.monotonic() - started, rows)
    if writer.error is not None:
        raise writer.error
    return time.monotonic() - started


def verify(server, data, limit):
    """Checks every view; answers whether all are right."""
    verdict = expected.check(server.connect(), data, limit)
    for name, found in verdict.items():
        say(f"{'right' if not found else 'WRONG':<6} {name}")
        for line in found[:5]:
            say(f"         {line}")
    return not any(verdict.values())


def stay(server):
    """Keeps the server up until Ctrl-C."""
    say("")
    say("Try it (Ctrl-C here ends it):")
    say(f'  psql -h 127.0.0.1 -p {server.port} -U me dev -c "SELECT * FROM top_routes WHERE month = 7 ORDER BY place"')
    say("  and UPDATE or DELETE some flights: the views follow.")
    try:
        while server.process.poll() is None:
            time.sleep(0.2)
    except KeyboardInterrupt:
        say("")


def run(chosen, directory):
    """The demo in `directory`."""
    data = flights.fetch()
    lines = list(flights.flight_lines(data, chosen.flights))
    server = servers.Levee(chosen.levee, directory, chosen.parallelism)
    seconds = server.start()
    try:
        say(f"levee takes connections after {seconds * 1000:.0f} ms")
        make(server.connect(), data)
        live = sys.stdout.isatty() and not chosen.plain
        seconds = stream(server, lines, Screen(live))
        say(f"{len(lines):,} flights in {seconds:.1f} s, {len(lines) / seconds:,.0f} a second into {len(views.DEMO)} views")
        right = verify(server, data, chosen.flights)
        if right and live and not chosen.end:
            stay(server)
    finally:
        code = server.stop()
    if code not in (0, None):
        say(f"levee ended with {code}:\n{server.log_end()}")
    return right and code == 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levee", required=True, help="the levee binary")
    parser.add_argument("--data-dir", help="keep the server's data here (default: a temporary directory)")
    parser.add_argument("--flights", type=int, help="stream only so many flights")
    parser.add_argument("--parallelism", type=int, help="Levee's tasks")
    parser.add_argument("--plain", action="store_true", help="plain lines on a terminal too")
    parser.add_argument("--end", action="store_true", help="end after the check on a terminal too")
    return parser.parse_args()


def main():
    chosen = arguments()
    if chosen.data_dir is None:
        with servers.Scratch() as directory:
            return 0 if run(chosen, directory) else 1
    directory = Path(chosen.data_dir)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        say(f"{directory} is not empty: the demo starts on a fresh directory")
        return 2
    return 0 if run(chosen, directory) else 1


if __name__ == "__main__":
    sys.exit(main())
