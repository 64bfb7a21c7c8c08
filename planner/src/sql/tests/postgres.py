"""Writes what PostgreSQL answers to setup.sql and cases.sql: python3 postgres.py 'host=127.0.0.1 port=… user=postgres' > postgres.out

Needs psycopg 3 and a PostgreSQL 15 made with `initdb --locale=C -E UTF8`, time zone UTC.
"""
import pathlib
import sys

import psycopg

here = pathlib.Path(__file__).parent
conn = psycopg.connect(sys.argv[1], autocommit=True)
conn.execute("DROP SCHEMA public CASCADE")
conn.execute("CREATE SCHEMA public")
for line in (here / "setup.sql").read_text().splitlines():
    conn.execute(line)
names = dict(conn.execute("SELECT oid, format_type(oid, NULL) FROM pg_type").fetchall())


def show(raw):
    return "NULL" if raw is None else raw.decode().replace("\n", "\\n")


for line in (here / "cases.sql").read_text().splitlines():
    print(">", line)
    try:
        with conn.cursor() as cur:
            cur.execute(line.replace("%", "%%") if False else line)
            result = cur.pgresult
            columns = [f"{result.fname(i).decode()} {names[result.ftype(i)]}" for i in range(result.nfields)]
            print(" | ".join(columns))
            for row in range(result.ntuples):
                print("  " + " | ".join(show(result.get_value(row, i)) for i in range(result.nfields)))
    except psycopg.Error as e:
        d = e.diag
        at = f" @{d.statement_position}" if d.statement_position else ""
        print(f"ERROR {d.sqlstate} {d.message_primary}{at}")
    print()
