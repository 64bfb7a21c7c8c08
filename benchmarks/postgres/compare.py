"""The same data and the same queries in Levee and in a throw-away PostgreSQL 15; every answer must be the same.

Views are compared after the load, after thousands of random changes, after a kill -9 in their midst, after what was deleted
is inserted again, and after another kill -9. Values are compared as the servers spell them, floats within a relative 1e-9.
One JSON line per stage and view; the exit code is 0 only if all are equal.

    compare.py --levee BINARY       the comparison
    compare.py --postgres-only      the PostgreSQL half alone: are these queries PostgreSQL's?
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psycopg
from shared import flights, servers, views

FLOAT_TOLERANCE = 1e-9
ROWS_PER_COPY = 20_000
CHANGES_PER_TRANSACTION = 100
SHOWN_MAX = 5
# How often each table is changed.
WEIGHTS = {"flights": 7, "planes": 1, "weather": 2}


class Side:
    """One of the two servers and a connection to it."""

    def __init__(self, server):
        self.server = server
        self.connection = server.connect()

    def execute(self, statement, parameters=None):
        return self.connection.execute(statement, parameters)

    def rows(self, query):
        """Column names, type oids and rows as text."""
        result = self.connection.execute(query).pgresult
        names = [result.fname(i).decode() for i in range(result.nfields)]
        types = [result.ftype(i) for i in range(result.nfields)]
        cells = [[text(result.get_value(r, c)) for c in range(result.nfields)] for r in range(result.ntuples)]
        return names, types, cells

    def kill_and_restart(self):
        """kill -9, start again; answers the seconds until it took connections."""
        self.server.kill()
        seconds = self.server.start()
        self.connection = self.server.connect()
        return seconds


def text(value):
    """A cell as text, None for NULL."""
    return None if value is None else bytes(value).decode()


def close(a, b):
    """Equal as floats are."""
    if a is None or b is None or a == b:
        return a == b
    x, y = float(a), float(b)
    return x == y or abs(x - y) <= FLOAT_TOLERANCE * max(abs(x), abs(y))


def differences(view, ours, theirs):
    """What is not equal, at most a few lines."""
    found = []
    for what, our, their in zip(("columns", "types"), ours, theirs, strict=False):
        if our != their:
            found.append(f"{what} {our} should be {their}")
    if len(ours[2]) != len(theirs[2]):
        found.append(f"{len(ours[2])} rows should be {len(theirs[2])}")
    floats = {theirs[0].index(name) for name in view.floats}
    for our, their in zip(ours[2], theirs[2], strict=False):
        equal = all(close(a, b) if i in floats else a == b for i, (a, b) in enumerate(zip(our, their, strict=False)))
        if not equal:
            found.append(f"{our} should be {their}")
    return found


class Comparison:
    """Both sides and the verdict so far."""

    def __init__(self, ours, theirs):
        self.ours = ours
        self.theirs = theirs
        self.failures = 0

    def sides(self):
        return [side for side in (self.ours, self.theirs) if side is not None]

    def compare(self, stage):
        """Compares every view; prints a line each."""
        for view in views.COMPARED:
            their_time, theirs = timed(lambda view=view: self.theirs.rows(view.read()))
            line = {"stage": stage, "view": view.name, "rows": len(theirs[2]), "postgres_ms": their_time}
            if self.ours is not None:
                try:
                    line["levee_ms"], ours = timed(lambda view=view: self.ours.rows(view.read()))
                    found = differences(view, ours, theirs)
                except psycopg.Error as error:
                    found = [f"{error.sqlstate}: {error}"]
                line["equal"] = not found
                if found:
                    self.failures += 1
                    line["differences"] = len(found)
                    line["first"] = found[:SHOWN_MAX]
            print(json.dumps(line), flush=True)

    def everywhere(self, statement, parameters=None):
        """Runs a statement on both sides; they must agree on the rows touched."""
        counts = [side.execute(statement, parameters).rowcount for side in self.sides()]
        if len(set(counts)) != 1:
            self.failures += 1
            print(json.dumps({"statement": statement, "parameters": str(parameters), "rows": counts}), flush=True)


def timed(action):
    """Milliseconds and result."""
    started = time.monotonic()
    result = action()
    return round((time.monotonic() - started) * 1000, 1), result


def create(comparison):
    """Tables, then the views: kept live by Levee, evaluated at each reading by PostgreSQL."""
    for ddl in flights.TABLES.values():
        comparison.everywhere(ddl)
    for view in views.COMPARED:
        comparison.theirs.execute(f"CREATE VIEW {view.name} AS {view.query}")
        if comparison.ours is not None:
            comparison.ours.execute(view.create())


def load(comparison, data, limit):
    """The same COPYs on both sides."""
    for side in comparison.sides():
        for table in flights.DIMENSIONS:
            flights.copy_dimension(side.connection, data, table)
        lines = list(flights.flight_lines(data, limit))
        for start in range(0, len(lines), ROWS_PER_COPY):
            flights.copy_flights(side.connection, lines[start : start + ROWS_PER_COPY])
    comparison.theirs.execute("CREATE INDEX ON flights (carrier, month)")
    comparison.theirs.execute("ANALYZE")


class Changes:
    """A seeded stream of UPDATEs and DELETEs by key; remembers the rows that it deleted."""

    def __init__(self, seed, data, limit):
        self.random = random.Random(seed)
        self.rows = {table: list(flights.rows(data, table, limit)) for table in WEIGHTS}
        self.deleted = {table: [] for table in self.rows}
        self.carriers = [row["carrier"] for row in flights.rows(data, "airlines")]
        self.tails = [row["tailnum"] for row in self.rows["planes"]]
        self.hours = sorted({row["time_hour"] for row in self.rows["weather"]})

    def next(self):
        """A statement and its parameters."""
        left = [table for table in WEIGHTS if self.rows[table]]
        table = self.random.choices(left, [WEIGHTS[table] for table in left])[0]
        rows = self.rows[table]
        place = self.random.randrange(len(rows))
        row = rows[place]
        key = [row[column] for column in flights.KEYS[table]]
        where = " AND ".join(f"{column} = {cast(column)}" for column in flights.KEYS[table])
        if self.random.random() < 0.4:
            rows[place] = rows[-1]
            rows.pop()
            self.deleted[table].append(row)
            return f"DELETE FROM {table} WHERE {where}", key
        column, value = self.change(table)
        return f"UPDATE {table} SET {column} = {cast(column)} WHERE {where}", [value, *key]

    def change(self, table):
        """A column and its new value: measures, join keys, group keys and NULLs all occur."""
        pick = self.random
        if table == "flights":
            return pick.choice(
                [
                    ("arr_delay", pick.choice([None, pick.randrange(-60, 1400)])),
                    ("dep_delay", pick.choice([None, pick.randrange(-30, 1400)])),
                    ("carrier", pick.choice(self.carriers)),
                    ("tailnum", pick.choice([None, "N0NAME", *pick.sample(self.tails, 4)])),
                    ("dest", pick.choice(["ATL", "ORD", "LAX", "BOS", "XXX", "ANC"])),
                    ("month", pick.randrange(1, 13)),
                    ("time_hour", pick.choice(self.hours)),
                ]
            )
        if table == "planes":
            return pick.choice(
                [
                    ("manufacturer", pick.choice([None, "BOEING", "AIRBUS", "LEVEE"])),
                    ("year", pick.choice([None, pick.randrange(1956, 2014)])),
                    ("model", pick.choice(["A320-214", "737-824", "dam"])),
                ]
            )
        return pick.choice(
            [
                ("wind_speed", pick.choice([None, pick.randrange(0, 4000) / 100])),
                ("wind_gust", pick.choice([None, pick.randrange(2000, 6600) / 100])),
                ("temp", pick.choice([None, pick.randrange(1000, 10_000) / 100])),
                ("precip", pick.randrange(0, 120) / 100),
            ]
        )


CASTS = {"time_hour": "timestamptz"} | {c: "double precision" for c in ("wind_speed", "wind_gust", "temp", "precip")}
CASTS |= {c: "integer" for c in ("arr_delay", "dep_delay", "month", "year")} | {"id": "bigint"}


def cast(column):
    """A parameter of the column's type."""
    return f"%s::{CASTS.get(column, 'text')}"


def apply(comparison, changes, count):
    """Runs `count` changes in transactions."""
    done = 0
    while done < count:
        batch = [changes.next() for _ in range(min(CHANGES_PER_TRANSACTION, count - done))]
        comparison.everywhere("BEGIN")
        for statement, parameters in batch:
            comparison.everywhere(statement, parameters)
        comparison.everywhere("COMMIT")
        done += len(batch)


def insert_again(comparison, changes):
    """Puts the deleted rows back as they were in the data."""
    for table, rows in changes.deleted.items():
        for start in range(0, len(rows), CHANGES_PER_TRANSACTION):
            batch = rows[start : start + CHANGES_PER_TRANSACTION]
            values = ", ".join(f"({', '.join(literal(value) for value in row.values())})" for row in batch)
            comparison.everywhere(f"INSERT INTO {table} ({', '.join(batch[0])}) VALUES {values}")
        changes.rows[table] += rows
        rows.clear()


def literal(value):
    """A value as SQL, to be taken for the column's type."""
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levee", help="the levee binary")
    parser.add_argument("--postgres-only", action="store_true", help="run PostgreSQL's half alone")
    parser.add_argument("--changes", type=int, default=10_000, help="UPDATEs and DELETEs (default 10000)")
    parser.add_argument("--flights", type=int, help="load only so many flights")
    parser.add_argument("--seed", type=int, default=1, help="of the changes (default 1)")
    parser.add_argument("--parallelism", type=int, help="Levee's tasks")
    chosen = parser.parse_args()
    if not chosen.postgres_only and chosen.levee is None:
        parser.error("--levee or --postgres-only is needed")
    return chosen


def stages(comparison, data, chosen):
    """The whole run."""
    create(comparison)
    load(comparison, data, chosen.flights)
    comparison.compare("load")
    changes = Changes(chosen.seed, data, chosen.flights)
    apply(comparison, changes, chosen.changes // 2)
    restart(comparison)
    comparison.compare("half of the changes, kill -9")
    apply(comparison, changes, chosen.changes - chosen.changes // 2)
    comparison.compare("all changes")
    insert_again(comparison, changes)
    comparison.compare("deleted rows inserted again")
    restart(comparison)
    comparison.compare("kill -9")


def restart(comparison):
    """kill -9 of Levee."""
    if comparison.ours is not None:
        seconds = comparison.ours.kill_and_restart()
        print(json.dumps({"restart_s": round(seconds, 3)}), flush=True)


def main():
    chosen = arguments()
    data = flights.fetch()
    with servers.Scratch() as scratch:
        (scratch / "postgres").mkdir()
        (scratch / "levee").mkdir()
        with servers.Postgres(scratch / "postgres") as postgres:
            if chosen.postgres_only:
                comparison = Comparison(None, Side(postgres))
                stages(comparison, data, chosen)
            else:
                with servers.Levee(chosen.levee, scratch / "levee", chosen.parallelism) as levee:
                    comparison = Comparison(Side(levee), Side(postgres))
                    stages(comparison, data, chosen)
    cases = 5 * len(views.COMPARED)
    print(json.dumps({"cases": cases, "failures": comparison.failures, "seed": chosen.seed}), flush=True)
    return 1 if comparison.failures else 0


if __name__ == "__main__":
    sys.exit(main())
