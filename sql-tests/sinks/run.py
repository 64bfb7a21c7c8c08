"""Sinks, exactly once: levee is killed again and again, targets are cut off and come back, while a table is inserted into, updated and
deleted from. In the end every target equals its view, and nothing arrived twice on the way.

    run.py [--kills N] [--targets file,postgres,kafka] [--seed S]

One JSON line per kill and per judgement. Needs LEVEE's binary with failpoints (`make test-binary`), PostgreSQL 15, and for Kafka a JDK,
Maven and aiokafka.
"""

import argparse
import datetime
import json
import os
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from decimal import Decimal

import psycopg

import judges
from services import Kafka, Levee, Postgres, terminate, wait_until

POINTS = ["sink::write", "sink::commit", "sink::written", "checkpoint::file", "checkpoint::manifest", None]
BIDS = 20000

# Values at the edges of their types.
EDGES = [
    (-1, 1, "", "0", "'NaN'", "'0001-01-01 00:00:00'", "'0001-01-01'", r"'\x'", "'-1 mon +2 days -03:00:00.000001'"),
    (-2, 1, "tab\tquote\"back\\slash,\nnewline ' ü €", "-99999999999999999999999999999999999999", "'Infinity'",
     "'2262-04-11 23:47:16.854775'", "'9999-12-31'", r"'\x00ff5c'", "'178 years'"),
    (-3, 2, "\u0001", "0." + "0" * 36 + "1", "'-0'", "'1969-12-31 23:59:59.999999'", "'1970-01-01'",
     r"'\x5c30'", "'-00:00:00.5'"),
    (-4, None, None, None, "'-Infinity'", None, None, None, None),
    (-5, 3, "plain", "1.50", "'5e-324'", "'2000-01-01'", "'2000-02-29'", r"'\xdeadbeef'", "'0'"),
]


def literal(value):
    if value is None:
        return "NULL"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


class Run:
    def __init__(self, args):
        self.rng = random.Random(args.seed)
        self.targets = args.targets.split(",")
        self.dir = tempfile.mkdtemp(prefix="levee-sinks-")
        self.levee = Levee(self.dir)
        self.postgres = Postgres() if "postgres" in self.targets else None
        self.kafka = Kafka() if "kafka" in self.targets else None
        self.next = 0
        self.hits = Counter()

    # --- definitions ---

    def make_targets(self):
        if self.postgres:
            with self.postgres.connect() as pg:
                pg.execute("CREATE TABLE rows (k int PRIMARY KEY, g bigint, v text, x numeric, f float8, at timestamp, d date, "
                           "b bytea, i interval, extra text DEFAULT 'kept')")
                pg.execute("CREATE TABLE agg (g int UNIQUE NOT NULL, n bigint, s numeric, hi text)")
                pg.execute("CREATE TABLE bids (auction bigint, bidder bigint, price bigint)")
        if self.kafka:
            judges.create_topics(self.kafka.address, {"agg": 2, "rows": 3, "bids": 2})

    def definitions(self):
        yield ("CREATE TABLE t (k int PRIMARY KEY, g int, v text, x numeric, f double precision, at timestamp, d date, b bytea, "
               "i interval)")
        for k, g, v, x, f, at, d, b, i in EDGES:
            cells = [literal(c) for c in (k, g, v)] + [str(c or "NULL") for c in (x, f, at, d, b, i)]
            yield f"INSERT INTO t VALUES ({', '.join(cells)})"
        # More than one step of a first filling.
        yield ("INSERT INTO t SELECT g::int, (g % 50)::int, 'v' || g::text, g / 8.0, g::double precision / 3, "
               "timestamp '2024-01-01' + g * interval '1 second', date '2024-01-01' + (g % 1000)::int, NULL, NULL "
               "FROM generate_series(1000000, 1070000) s(g)")
        yield ("CREATE MATERIALIZED VIEW agg AS SELECT g, count(*) AS n, sum(x) AS s, max(v) AS hi FROM t "
               "WHERE g IS NOT NULL GROUP BY g")
        yield ("CREATE SOURCE bid WITH (connector = 'nexmark', nexmark.event.type = 'bid', nexmark.event.rate = '4000', "
               f"nexmark.event.limit = '{BIDS}')")
        yield "CREATE MATERIALIZED VIEW bids AS SELECT auction, bidder, price FROM bid"

    def sinks(self):
        """Names and statements; they are made one by one, some while levee is killed."""
        bids = "AS SELECT auction, bidder, price FROM bid"
        out = {}
        if "file" in self.targets:
            path = lambda name: f"connector = 'file', path = '{self.dir}/out/{name}'"
            out["file_agg"] = f"FROM agg WITH ({path('agg')})"
            out["file_rows"] = (f"AS SELECT k, g, v, x FROM t WITH ({path('rows')}, primary_key = 'k', roll_size = '200000') "
                                "FORMAT PLAIN ENCODE CSV (header = 'true')")
            out["file_bids"] = f"{bids} WITH ({path('bids')}, type = 'append-only') FORMAT PLAIN ENCODE JSON"
        if self.postgres:
            out["pg_rows"] = f"FROM t WITH ({self.postgres.options('rows')}, type = 'upsert', primary_key = 'k')"
            out["pg_agg"] = f"FROM agg WITH ({self.postgres.options('agg')})"
            out["pg_bids"] = f"{bids} WITH ({self.postgres.options('bids')}, type = 'append-only')"
        if self.kafka:
            out["kafka_agg"] = f"FROM agg WITH ({self.kafka.options('agg')}) FORMAT UPSERT ENCODE JSON"
            out["kafka_rows"] = (f"AS SELECT k, g, v, x FROM t WITH ({self.kafka.options('rows')}, primary_key = 'k') "
                                 "FORMAT DEBEZIUM ENCODE JSON")
            out["kafka_bids"] = f"{bids} WITH ({self.kafka.options('bids')}) FORMAT PLAIN ENCODE JSON"
        return out

    # --- work ---

    def write(self, stop):
        """Inserts, updates and deletes until levee is gone."""
        try:
            with self.levee.connect() as conn:
                while not stop.is_set():
                    self.one_change(conn)
        except psycopg.OperationalError:
            pass

    def one_change(self, conn):
        kind = self.rng.random()
        low = self.rng.randrange(max(self.next, 1))
        if kind < 0.5 or self.next < 100:
            n = self.rng.choice([1, 5, 200])
            first, self.next = self.next, self.next + n
            conn.execute("INSERT INTO t SELECT g::int, (g % 7)::int, 'new' || g::text, g * 0.25, g, now()::timestamp, NULL, NULL, NULL "
                         f"FROM generate_series({first}, {first + n - 1}) s(g)")
        elif kind < 0.8:
            conn.execute(f"UPDATE t SET x = x + 1, g = (g + 1) % 9, v = v || '!' WHERE k BETWEEN {low} AND {low + 30}")
        else:
            conn.execute(f"DELETE FROM t WHERE k BETWEEN {low} AND {low + 10}")

    def make(self, statements):
        """Creates what is not there yet; levee may die meanwhile."""
        try:
            with self.levee.connect() as conn:
                # In the foreground a creation would be given up when levee dies.
                conn.execute("SET background_ddl = on")
                for name, text in statements.items():
                    conn.execute(f"CREATE SINK IF NOT EXISTS {name} {text}")
        except psycopg.OperationalError as e:
            if self.levee.running() and e.sqlstate is not None:
                raise

    def one_life(self, n, kills, sinks):
        """One kill; in some lives a target is cut off for a while."""
        point = POINTS[n % len(POINTS)]
        env = {}
        mark = os.path.join(self.dir, f"mark{n}")
        if point:
            hit = self.rng.randint(1, 3) if point.startswith("checkpoint") else self.rng.randint(2, 25)
            env = {"LEVEE_KILL_AT": f"{point}:{hit}", "LEVEE_KILL_MARK": mark}
        started = time.time()
        ready = self.levee.start(env)
        ready_ms = int(1000 * (time.time() - started))
        stop = threading.Event()
        cut = None
        if ready:
            # Sinks come one or two a life, so that their first filling is killed too.
            made = dict(list(sinks.items())[: max(2, len(sinks) * (n + 2) // max(kills // 2, 1))])
            threads = [threading.Thread(target=self.write, args=(stop,)), threading.Thread(target=self.make, args=(made,))]
            for thread in threads:
                thread.start()
            service = [None, self.postgres, None, self.kafka][n % 4]
            until = time.time() + (12 if point else self.rng.uniform(0.5, 3))
            if service:
                time.sleep(self.rng.uniform(0.2, 1.0))
                cut = type(service).__name__
                service.cut_off()
                time.sleep(self.rng.uniform(0.3, 1.5))
                service.start()
            while self.levee.running() and time.time() < until:
                time.sleep(0.01)
            self.levee.kill()
            stop.set()
            for thread in threads:
                thread.join()
        self.levee.kill()
        confirmed = os.path.exists(mark)
        self.hits[point or "signal"] += confirmed or point is None
        print(json.dumps({"kill": n, "at": point or "signal", "confirmed": confirmed, "cut_off": cut, "ready_ms": ready_ms,
                          "ran_ms": int(1000 * (time.time() - started)), "keys": self.next}), flush=True)

    def drained(self, conn):
        rows = conn.execute("SELECT name, status, error, lag_epochs, gathered_bytes FROM levee_catalog.sinks").fetchall()
        failed = [r for r in rows if r[1] == "failed"]
        assert not failed, f"a sink has failed: {failed}"
        jobs = conn.execute("SELECT name, state, finished FROM levee_catalog.jobs").fetchall()
        behind = [j for j in jobs if j[1] != "running" or (j[0].endswith("bids") and not j[2])]
        return not behind and all(r[1] == "running" and r[3] == 0 and r[4] == 0 for r in rows)

    # --- judgement ---

    def judge(self, conn):
        agg = self.view(conn, "SELECT g, n, s, hi FROM agg", ("g",))
        rows = self.view(conn, "SELECT k, g, v, x FROM t", ("k",))
        bids = Counter(conn.execute("SELECT auction, bidder, price FROM bids").fetchall())
        assert sum(bids.values()) == BIDS * 46 // 50 or sum(bids.values()) == BIDS, f"{sum(bids.values())} bids"
        bag = lambda dicts: Counter((r["auction"], r["bidder"], r["price"]) for r in dicts)
        if "file" in self.targets:
            out = os.path.join(self.dir, "out")
            self.same("file_agg", judges.keyed_files(f"{out}/agg", ["g"]), agg)
            text = lambda v: "" if v is None else v if isinstance(v, str) else f"{v:f}" if isinstance(v, Decimal) else str(v)
            as_text = {(str(k[0]),): {c: text(v) for c, v in r.items()} for k, r in rows.items()}
            self.same("file_rows", judges.keyed_files(f"{out}/rows", ["k"]), as_text)
            self.same("file_bids", bag(judges.records(f"{out}/bids")), bids)
        if self.postgres:
            self.judge_postgres(conn, bids)
        if self.kafka:
            self.same("kafka_agg", judges.upsert_topic(self.kafka.address, "agg", ["g"]), agg)
            self.same("kafka_rows", judges.debezium_topic(self.kafka.address, "rows", ["k"]), rows)
            self.same("kafka_bids", bag(judges.parse(m.value) for m in judges.consume(self.kafka.address, "bids")), bids)

    def judge_postgres(self, conn, bids):
        with self.postgres.connect() as pg:
            columns = "k, g, v, x, f::text, at::text, d::text, b, i::text"
            key = lambda r: r[0]
            ours = sorted(conn.execute(f"SELECT {columns} FROM t").fetchall(), key=key)
            theirs = sorted(pg.execute(f"SELECT {columns} FROM rows").fetchall(), key=key)
            self.same("pg_rows", theirs, ours)
            assert pg.execute("SELECT count(*) FROM rows WHERE extra IS DISTINCT FROM 'kept'").fetchone()[0] == 0
            query = "SELECT g, n, s, hi FROM agg ORDER BY g"
            self.same("pg_agg", pg.execute(query).fetchall(), conn.execute(query).fetchall())
            self.same("pg_bids", Counter(pg.execute("SELECT auction, bidder, price FROM bids").fetchall()), bids)

    def view(self, conn, query, key):
        cursor = conn.execute(query)
        names = [c.name for c in cursor.description]
        rows = (dict(zip(names, row)) for row in cursor.fetchall())
        return {tuple(r[k] for k in key): r for r in rows}

    def same(self, what, found, expected):
        if found != expected:
            if isinstance(found, dict):
                differ = [(k, found.get(k), expected.get(k)) for k in set(found) | set(expected) if found.get(k) != expected.get(k)]
            else:
                differ = [(f, e) for f, e in zip(found, expected) if f != e] or [len(found), len(expected)]
            raise AssertionError(f"{what} differs in {len(differ)} places: {differ[:5]}")
        print(json.dumps({"judge": what, "rows": sum(found.values()) if isinstance(found, Counter) else len(found), "ok": True}), flush=True)

    def run(self, kills):
        self.make_targets()
        assert self.levee.start(), self.levee.text()
        with self.levee.connect() as conn:
            for statement in self.definitions():
                try:
                    conn.execute(statement)
                except psycopg.Error as e:
                    raise AssertionError(statement) from e
        self.levee.kill()
        sinks = self.sinks()
        for n in range(kills):
            self.one_life(n, kills, sinks)
        assert self.levee.start(), self.levee.text()
        self.make(sinks)
        with self.levee.connect() as conn:
            try:
                wait_until("sinks have delivered everything", 120, lambda: self.drained(conn))
            except AssertionError:
                for row in conn.execute("SELECT * FROM levee_catalog.sinks").fetchall():
                    print(row)
                print(conn.execute("SELECT * FROM levee_catalog.jobs").fetchall())
                raise
            self.judge(conn)
            if self.postgres:
                self.others_stay_fresh(conn)
        assert terminate(self.levee.process) == 0
        complaints = self.levee.complaints()
        assert not complaints, "\n".join(complaints)
        print(json.dumps({"kills": kills, "confirmed": dict(self.hits), "targets": self.targets, "ok": True}))

    # --- blast radius ---

    def others_stay_fresh(self, conn):
        """A sink whose target is gone does not delay another view: p99 of the time from INSERT to a read that shows it."""
        conn.execute("CREATE TABLE fresh_t (k int, g int)")
        conn.execute("CREATE MATERIALIZED VIEW fresh AS SELECT g, count(*) AS n FROM fresh_t GROUP BY g")
        for attempt in range(3):
            with_target = self.freshness(conn)
            self.postgres.cut_off()
            conn.execute("UPDATE t SET x = x + 1 WHERE k BETWEEN 1000000 AND 1000100")
            status = lambda: conn.execute("SELECT status FROM levee_catalog.sinks WHERE name = 'pg_rows'").fetchone()[0]
            wait_until("the sink is seen to be cut off", 30, lambda: status() != "running")
            without = self.freshness(conn)
            self.postgres.start()
            wait_until("the sink goes on by itself", 60, lambda: self.drained(conn))
            good = without <= with_target + max(0.1 * with_target, 0.020)
            print(json.dumps({"freshness_p99_ms": round(1000 * with_target, 1), "target_gone_ms": round(1000 * without, 1), "ok": good}), flush=True)
            if good:
                return
        raise AssertionError("a sink whose target is gone delays another view")

    def freshness(self, conn):
        times = []
        for n in range(200):
            start = time.time()
            self.shown = getattr(self, "shown", 0) + 1
            conn.execute(f"INSERT INTO fresh_t VALUES ({self.shown}, 1)")
            while conn.execute("SELECT n FROM fresh WHERE g = 1").fetchone() != (self.shown,):
                pass
            times.append(time.time() - start)
            time.sleep(0.005)
        return sorted(times)[int(0.99 * len(times))]

    def remove(self, keep):
        self.levee.kill()
        for service in (self.postgres, self.kafka):
            if service:
                service.remove()
        if not keep:
            shutil.rmtree(self.dir, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--targets", default="file,postgres")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    started = datetime.datetime.now()
    run = Run(args)
    done = False
    try:
        run.run(args.kills)
        done = True
    finally:
        if not done:
            print(f"kept: {run.dir}, seed {args.seed}")
        run.remove(keep=not done)
    print(json.dumps({"seconds": (datetime.datetime.now() - started).total_seconds()}))


if __name__ == "__main__":
    main()
