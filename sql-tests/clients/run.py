"""Starts a server of its own and drives it with the clients that people use: psycopg 3 and psql's backslash commands.

Every check raises; the exit code tells. Needs LEVEE's binary (built by `make test-binary`), psql, and psycopg in the venv.
"""

import datetime
import decimal
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid

import psycopg
from psycopg.types.json import Jsonb


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="levee-clients-")
        self.pg, self.http = free_port(), free_port()
        binary = os.environ.get("LEVEE_BIN") or os.path.join(os.environ["CARGO_TARGET_DIR"], "debug", "levee")
        self.log = open(os.path.join(self.dir, "log"), "w+")
        self.process = subprocess.Popen(
            [binary, "serve", "--data-dir", os.path.join(self.dir, "data"),
             "--pg-addr", f"127.0.0.1:{self.pg}", "--http-addr", f"127.0.0.1:{self.http}"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        deadline = time.time() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/readyz", timeout=1) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            if self.process.poll() is not None or time.time() > deadline:
                raise SystemExit("levee did not start:\n" + self.text())
            time.sleep(0.02)

    def text(self):
        self.log.flush()
        return open(self.log.name).read()

    def conninfo(self):
        return f"host=127.0.0.1 port={self.pg} user=test dbname=dev"

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        assert code == 0, f"SIGTERM ends with {code}"

    def remove(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def equal(found, expected, what):
    assert found == expected, f"{what}:\n  found    {found!r}\n  expected {expected!r}"


def types(server):
    """All types, as parameters and results, in text and in binary."""
    day, stamp = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 13, 14, 15, 123456)
    zoned = datetime.datetime(2024, 2, 29, 13, 14, 15, tzinfo=datetime.timezone.utc)
    row = (True, 1, 2, 3, 0.5, 0.25, decimal.Decimal("12.50"), "täxt", b"\x00\xff", day, stamp, zoned,
           datetime.timedelta(days=1, hours=2))
    with psycopg.connect(server.conninfo(), autocommit=True) as conn:
        conn.execute("CREATE TABLE every (a bool, b int2, c int4, d int8, e float4, f float8, g numeric(10,2), h text, "
                     "i bytea, j date, k timestamp, l timestamptz, m interval)")
        marks = ", ".join(["%s"] * len(row))
        conn.execute(f"INSERT INTO every VALUES ({marks})", row)
        conn.execute(f"INSERT INTO every VALUES ({marks})", (None,) * len(row))
        for binary in (False, True):
            found = conn.cursor(binary=binary).execute("SELECT * FROM every WHERE c = %s", (2,)).fetchone()
            equal(found, row, f"types, binary={binary}")
            nulls = conn.cursor(binary=binary).execute("SELECT * FROM every WHERE c IS NULL").fetchone()
            equal(nulls, (None,) * len(row), f"nulls, binary={binary}")
        found = conn.execute("SELECT count(*), count(*) FROM every").description
        equal([c.name for c in found], ["count", "count"], "column names")


def collections(server):
    """Lists and json, as parameters and results, in text and in binary, in a table and in a view."""
    day = datetime.date(2024, 2, 29)
    ident = uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
    doc = {"b": 1, "a": [1, None, {"x": "\u00e4"}], "t": True}
    rows = [
        (1, [1, None, 300], ["a", 'b "c"', None, ""], [0.5, -1.0], [decimal.Decimal("1.5")], [day], [True, False], ident, doc),
        (2, [], None, [], None, [], None, None, [1, 2]),
    ]
    with psycopg.connect(server.conninfo(), autocommit=True) as conn:
        conn.execute("CREATE TABLE bags (id int PRIMARY KEY, a int[], s text[], f float8[], n numeric[], d date[], b bool[], "
                     "u uuid, j jsonb)")
        conn.execute("CREATE MATERIALIZED VIEW bagged AS SELECT j, a, count(*) AS n, array_agg(id ORDER BY id) AS ids "
                     "FROM bags GROUP BY j, a")
        for row in rows:
            conn.execute("INSERT INTO bags VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)", row[:8] + (Jsonb(row[8]),))
        for binary in (False, True):
            found = conn.cursor(binary=binary).execute("SELECT * FROM bags ORDER BY id").fetchall()
            equal(found, rows, f"lists and json, binary={binary}")
        found = conn.execute("SELECT id FROM bags WHERE id = ANY(%s) AND j @> %s", ([1, 7], Jsonb({"t": True}))).fetchall()
        equal(found, [(1,)], "= ANY of a list")
        found = conn.execute("SELECT ids FROM bagged WHERE a = %b::int[]", ([1, None, 300],)).fetchall()
        equal(found, [([1],)], "a view with an array as its key")
        with conn.cursor() as cur:
            with cur.copy("COPY bags (id, a, s, j) FROM STDIN (FORMAT csv)") as copy:
                copy.write('3,"{4,5}","{x,""y z""}","{""k"":[]}"\n')
            cur.execute("SELECT a, s, j FROM bags WHERE id = 3")
            equal(cur.fetchall(), [([4, 5], ["x", "y z"], {"k": []})], "arrays and json through COPY")
        types_ = conn.execute("SELECT data_type, udt_name FROM information_schema.columns WHERE table_name = 'bags' "
                              "AND column_name IN ('a', 'u', 'j') ORDER BY ordinal_position").fetchall()
        equal(types_, [("ARRAY", "_int4"), ("uuid", "uuid"), ("jsonb", "jsonb")], "types in the catalogs")
        try:
            conn.execute("SELECT '[1,'::jsonb")
            raise AssertionError("broken json was read")
        except psycopg.errors.InvalidTextRepresentation as e:
            equal(e.diag.message_detail, "The input string ended unexpectedly.", "detail of broken json")
        conn.execute("DROP MATERIALIZED VIEW bagged")
        conn.execute("DROP TABLE bags")


def transactions(server):
    """Blocks, isolation, conflicts, read your writes, prepared statements, COPY."""
    with psycopg.connect(server.conninfo()) as one, psycopg.connect(server.conninfo()) as two:
        one.execute("CREATE TABLE acct (id int PRIMARY KEY, v int)")
        one.commit()
        one.execute("CREATE MATERIALIZED VIEW total AS SELECT sum(v) AS v FROM acct")
        one.commit()
        one.execute("INSERT INTO acct VALUES (1, 100), (2, 100)")
        equal(two.execute("SELECT count(*) FROM acct").fetchone(), (0,), "an open block is not seen")
        two.rollback()
        equal(one.execute("SELECT sum(v) FROM acct").fetchone(), (200,), "a block sees its own writes")
        one.commit()
        equal(one.execute("SELECT v FROM total").fetchone(), (200,), "a view has the session's write")
        one.rollback()
        one.execute("UPDATE acct SET v = v - 10 WHERE id = 1")
        two.execute("SET lock_timeout = '50ms'")
        two.commit()
        try:
            two.execute("UPDATE acct SET v = v + 10 WHERE id = 1")
            raise AssertionError("a row was changed that another block has changed")
        except psycopg.errors.LockNotAvailable:
            two.rollback()
        one.commit()
        two.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        two.execute("SELECT v FROM acct")
        one.execute("UPDATE acct SET v = v + 20 WHERE id = 1")
        one.commit()
        try:
            two.execute("UPDATE acct SET v = v + 10 WHERE id = 1")
            raise AssertionError("a conflict was not noticed")
        except psycopg.errors.SerializationFailure:
            two.rollback()
        two.isolation_level = None
        equal(one.execute("SELECT v FROM acct WHERE id = 1").fetchone(), (110,), "the first to write wins")
        one.rollback()
        with one.cursor() as cur:
            with cur.copy("COPY acct (id, v) FROM STDIN") as copy:
                for i in range(10, 2010):
                    copy.write_row((i, i))
        one.commit()
        equal(one.execute("SELECT count(*) FROM acct").fetchone(), (2002,), "COPY")
        one.rollback()
        for i in range(20):
            equal(one.execute("SELECT v FROM acct WHERE id = %s", (i + 10,), prepare=True).fetchone(), (i + 10,), "prepared")
        one.rollback()
        try:
            one.execute("SELECT nothing FROM acct")
        except psycopg.errors.UndefinedColumn:
            pass
        try:
            one.execute("SELECT 1")
            raise AssertionError("a failed block goes on")
        except psycopg.errors.InFailedSqlTransaction:
            one.rollback()
        with one.cursor() as cur:
            cur.executemany("UPDATE acct SET v = 0 WHERE id = %s", [(i,) for i in range(10, 15)])
        one.commit()
        equal(one.execute("SELECT count(*) FROM acct WHERE v = 0").fetchone(), (5,), "executemany")


def cancel(server):
    """Cancel stops a running query, and so does statement_timeout."""
    heavy = "SELECT count(*) FROM generate_series(1, 200000) a(x) CROSS JOIN generate_series(1, 200000) b(y)"
    with psycopg.connect(server.conninfo(), autocommit=True) as conn:
        timer = threading.Timer(0.5, conn.cancel)
        timer.start()
        start = time.time()
        try:
            conn.execute(heavy)
            raise AssertionError("not cancelled")
        except psycopg.errors.QueryCanceled:
            assert time.time() - start < 5, "cancel takes too long"
        conn.execute("SET statement_timeout = '300ms'")
        try:
            conn.execute(heavy)
            raise AssertionError("no time-out")
        except psycopg.errors.QueryCanceled:
            pass
        conn.execute("SET statement_timeout = 0")
        equal(conn.execute("SELECT 1").fetchone(), (1,), "after a cancel")


def psql(server, command):
    done = subprocess.run(
        ["psql", "-X", "-v", "ON_ERROR_STOP=1", "-P", "pager=off", "-d", server.conninfo(), "-c", command],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"psql {command}: {done.stderr}"
    return done.stdout


def backslash(server):
    """psql's \\d family."""
    psql(server, "CREATE TABLE shown (id int PRIMARY KEY, name text NOT NULL, price numeric(8,2) DEFAULT 1.5)")
    psql(server, "CREATE VIEW shown_view AS SELECT id FROM shown")
    psql(server, "CREATE MATERIALIZED VIEW shown_mv AS SELECT name, count(*) AS n FROM shown GROUP BY name")
    for command, wanted in [
        (r"\d", ["shown", "shown_mv", "shown_view", "materialized view"]),
        (r"\dt", ["shown"]),
        (r"\dm", ["shown_mv"]),
        (r"\dv", ["shown_view"]),
        (r"\d shown", ["id", "integer", "not null", "numeric(8,2)", "PRIMARY KEY"]),
        (r"\d shown_mv", ["name", "bigint"]),
        (r"\l", ["dev"]),
        (r"\dn", ["public"]),
    ]:
        out = psql(server, command)
        for word in wanted:
            assert word in out, f"psql {command} does not show {word!r}:\n{out}"
    assert "shown_mv" not in psql(server, r"\dt"), r"\dt shows a materialized view"
    assert "(1 row)" in psql(server, "SELECT 1 AS one")


def writes(server):
    """What drivers do around writes: RETURNING, batches, savepoints, named cursors, COPY both ways."""
    with psycopg.connect(server.conninfo(), autocommit=True) as c:
        c.execute("CREATE TABLE w (id int PRIMARY KEY, v text, n numeric, at timestamptz)")
        with c.cursor() as cursor:
            cursor.executemany("INSERT INTO w (id, v) VALUES (%s, %s) RETURNING id", [(i, f"v{i}") for i in range(50)], returning=True)
            ids = []
            while True:
                ids.append(cursor.fetchone()[0])
                if not cursor.nextset():
                    break
            assert ids == list(range(50)), ids
            assert cursor.execute("UPDATE w SET n = id * 1.5 WHERE id < %s", (10,)).rowcount == 10
            row = cursor.execute("DELETE FROM w WHERE id = %s RETURNING id, v, n", (49,)).fetchone()
            assert row == (49, "v49", None), row
            row = cursor.execute("INSERT INTO w (id, v) VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET v = excluded.v || w.v RETURNING v",
                                 (1, "x")).fetchone()
            assert row == ("xv1",), row
            row = cursor.execute("WITH gone AS (DELETE FROM w WHERE id >= %s RETURNING id) SELECT count(*) FROM gone", (40,)).fetchone()
            assert row == (9,), row
    with psycopg.connect(server.conninfo()) as c:
        with c.transaction():
            c.execute("INSERT INTO w (id) VALUES (100)")
            try:
                with c.transaction():
                    c.execute("INSERT INTO w (id) VALUES (101)")
                    c.execute("INSERT INTO w (id) VALUES (100)")
            except psycopg.errors.UniqueViolation:
                pass
            c.execute("INSERT INTO w (id) VALUES (102)")
        assert [r[0] for r in c.execute("SELECT id FROM w WHERE id >= 100 ORDER BY id")] == [100, 102]
        with c.cursor("named") as cursor:
            cursor.itersize = 7
            cursor.execute("SELECT id, v FROM w ORDER BY id")
            assert len(list(cursor)) == 42
        with c.cursor("scrolls", scrollable=True) as cursor:
            cursor.execute("SELECT id FROM w ORDER BY id")
            cursor.scroll(3)
            assert cursor.fetchone() == (3,)
            cursor.scroll(0, mode="absolute")
            assert [r[0] for r in cursor.fetchmany(3)] == [0, 1, 2]
        c.commit()
        c.execute("CREATE TABLE w2 (id int, v text, n numeric, at timestamptz, ok boolean, f float8, b bytea, d date)")
        rows = [(i, f"t\t{i}", decimal.Decimal(i) / 4, datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc), i % 2 == 0,
                 i / 3, bytes([i]), datetime.date(2024, 2, 29)) for i in range(20)] + [(None,) * 8]
        for form in ("text", "csv", "binary"):
            c.execute("TRUNCATE w2")
            with c.cursor() as cursor:
                if form == "csv":
                    with cursor.copy("COPY w2 (id, v) FROM STDIN (FORMAT csv, HEADER)") as copy:
                        copy.write("id,v\n" + "".join(f'{i},"t\t{i}"\n' for i in range(20)))
                    assert c.execute("SELECT count(*), sum(id) FROM w2").fetchone() == (20, 190)
                    continue
                with cursor.copy(f"COPY w2 FROM STDIN (FORMAT {form})") as copy:
                    if form == "binary":
                        copy.set_types(["int4", "text", "numeric", "timestamptz", "bool", "float8", "bytea", "date"])
                    for row in rows:
                        copy.write_row(row)
                with cursor.copy(f"COPY (SELECT * FROM w2 ORDER BY id) TO STDOUT (FORMAT {form})") as copy:
                    copy.set_types(["int4", "text", "numeric", "timestamptz", "bool", "float8", "bytea", "date"])
                    back = list(copy.rows())
                assert [tuple(r) for r in back] == rows, back[:3]
        c.commit()


def main():
    server = Server()
    try:
        for part in (types, collections, transactions, cancel, writes, backslash):
            start = time.time()
            part(server)
            print(f"client test {part.__name__}: ok ({time.time() - start:.1f} s)")
        server.stop()
        wrong = [line for line in server.text().splitlines() if " ERROR " in line or " WARN " in line or "panicked" in line]
        assert not wrong, "the server complains:\n" + "\n".join(wrong)
        print("client test stop: ok")
    except BaseException:
        sys.stderr.write("--- server log ---\n" + server.text()[-4000:])
        raise
    finally:
        server.remove()


if __name__ == "__main__":
    main()
