"""What a Kafka source does, case by case."""

import csv
import json
import sys
import time

import psycopg
from world import ROOT, Broker, Delivered, Levee, wait

sys.path.insert(0, str(ROOT / "benchmarks"))

# Older records would be removed by the broker's retention.
BASE_MS = int(time.time() * 1000) - 60_000


def create(levee, broker, name, columns, topic=None, form="FORMAT PLAIN ENCODE JSON", include="", kind="SOURCE", **options):
    """CREATE SOURCE or TABLE over a topic."""
    options = {"connector": "kafka", "topic": topic or name, "properties.bootstrap.server": broker.address()} | options
    given = ", ".join(f"{k} = '{v}'" for k, v in options.items())
    levee.sql(f"CREATE {kind} {name} ({columns}) {include} WITH ({given}) {form}")


def columns_of_the_envelope(broker, directory, full):
    """Key, headers, partition, offset and timestamp as columns; JSON and CSV; broken records apart; a sample."""
    broker.create("env", 2)
    broker.create("lines", 1)
    log = Delivered(broker.producer(), "env")
    for i in range(20):
        log.write(json.dumps({"n": i}), key=f"k{i}", headers={"trace": f"t{i}", "x": None}, timestamp=BASE_MS + i)
    log.write("{", key="bad")
    log.flush()
    lines = Delivered(broker.producer(), "lines")
    for text in ["1,one,2024-02-03", '2,"two, twice",', "x,three,2024-02-03"]:
        lines.write(text)
    lines.flush()
    levee = Levee(directory)
    create(levee, broker, "env", "n int",
           include="INCLUDE key AS k INCLUDE partition AS p INCLUDE offset AS o INCLUDE timestamp AS t INCLUDE header 'trace' AS h INCLUDE header AS hs")  # fmt: skip
    levee.sql("CREATE MATERIALIZED VIEW envs AS SELECT n, k, p, o, t, h, hs FROM env")
    levee.settles("SELECT count(*) FROM envs", [(20,)])
    for n, k, p, o, t, h, hs in levee.sql("SELECT * FROM envs"):
        assert (k, h) == (f"k{n}".encode(), f"t{n}".encode()), (k, h)
        assert json.loads(hs) == {"trace": f"t{n}", "x": None}, hs
        assert round(t.timestamp() * 1000) == BASE_MS + n, t
        assert json.loads(log.records[(p, o)]) == {"n": n}
    create(levee, broker, "lines", "a int, b text, c date", form="FORMAT PLAIN ENCODE CSV")
    levee.sql("CREATE MATERIALIZED VIEW linesv AS SELECT a, b, c::text AS c FROM lines")
    levee.settles("SELECT * FROM linesv ORDER BY a", [(1, "one", "2024-02-03"), (2, "two, twice", None)])
    letters = levee.sql('SELECT source, partition, "offset", reason, bytes FROM levee_catalog.dead_letters ORDER BY source')
    assert [(r[0], r[4]) for r in letters] == [("env", b"{"), ("lines", b"x,three,2024-02-03")], letters
    place = (int(letters[0][1]), letters[0][2])
    assert log.records[place] == "{", letters
    assert levee.source("env")["dead_letters"] == 1
    sample = levee.sql("SELECT n FROM env LIMIT 3")
    assert len(sample) == 3, sample
    assert "LIMIT" in str(levee.fails("SELECT * FROM env").diag.message_hint)
    levee.sql("DROP MATERIALIZED VIEW envs")
    levee.sql("DROP SOURCE env")
    levee.settles("SELECT source FROM levee_catalog.dead_letters", [("lines",)])
    levee.stop()


def start_positions(broker, directory, full):
    """Earliest, latest, timestamp and given offsets; what cannot be is refused at CREATE."""
    broker.create("pos", 2)
    log = Delivered(broker.producer(), "pos")
    for i in range(10):
        log.write(json.dumps({"n": i}), partition=i % 2, timestamp=BASE_MS + i)
    log.flush()
    levee = Levee(directory)
    at = {
        "early": {},
        "late": {"scan.startup.mode": "latest"},
        "timed": {"scan.startup.mode": "timestamp", "scan.startup.timestamp.millis": BASE_MS + 6},
        "given": {"scan.startup.mode": "offsets", "scan.startup.offsets": "1:3"},
    }
    for name, options in at.items():
        create(levee, broker, name, "n int", topic="pos", **options)
    # The positions are those of CREATE, not of the first view.
    for i in range(10, 12):
        log.write(json.dumps({"n": i}), partition=i % 2, timestamp=BASE_MS + i)
    log.flush()
    want = {
        "early": list(range(12)),
        "late": [10, 11],
        "timed": [6, 7, 8, 9, 10, 11],
        "given": [0, 2, 4, 6, 7, 8, 9, 10, 11],
    }
    for name, rows in want.items():
        levee.sql(f"CREATE MATERIALIZED VIEW v_{name} AS SELECT n FROM {name}")
        levee.settles(f"SELECT n FROM v_{name} ORDER BY n", [(n,) for n in rows])
    refused = [
        ({"topic": "nowhere"}, "42704", "does not exist"),
        ({"properties.bootstrap.server": "127.0.0.1:1"}, "08001", "does not answer"),
        ({"scan.startup.mode": "offsets", "scan.startup.offsets": "0:99"}, "22023", "offset 99"),
        ({"scan.startup.mode": "offsets", "scan.startup.offsets": "7:0"}, "22023", "no partition 7"),
        ({"properties.nonsense": "1"}, "22023", "nonsense"),
        ({"topics": "pos"}, "22023", "topics"),
    ]
    for options, code, text in refused:
        try:
            create(levee, broker, "bad", "n int", **({"topic": "pos"} | options))
            raise AssertionError(f"{options} was accepted")
        except psycopg.Error as error:
            assert (error.sqlstate, text in str(error)) == (code, True), (options, error.sqlstate, str(error))
    levee.stop()


def keyed_changes(broker, directory, full):
    """Upserts with tombstones, Debezium events, partitions added; a table that stores them and is written to as well."""
    broker.create("ups", 2)
    broker.create("dbz", 2)
    log = Delivered(broker.producer(), "ups")
    now = {}

    def put(key, row):
        log.write(json.dumps(row) if row else None, key=json.dumps({"id": key}), tag="u")
        if row:
            now[key] = row["v"]
        else:
            now.pop(key, None)

    for i in range(200):
        put(i % 30, {"id": i % 30, "v": f"v{i}"} if i % 7 else None)
    log.flush()
    levee = Levee(directory)
    create(levee, broker, "ups", "id int PRIMARY KEY, v text", form="FORMAT UPSERT ENCODE JSON")
    create(levee, broker, "upt", "id int PRIMARY KEY, v text", topic="ups", form="FORMAT UPSERT ENCODE JSON", kind="TABLE")
    levee.sql("CREATE MATERIALIZED VIEW rows_of AS SELECT id, v FROM ups")
    levee.sql("CREATE MATERIALIZED VIEW counts AS SELECT count(*) AS n, count(DISTINCT v) AS d FROM ups")
    levee.sql("CREATE MATERIALIZED VIEW of_table AS SELECT count(*) AS n, max(v) AS m FROM upt")

    def check(table=None):
        rows = sorted(now.items())
        levee.settles("SELECT id, v FROM rows_of ORDER BY id", rows)
        levee.settles("SELECT * FROM counts", [(len(rows), len({v for _, v in rows}))])
        stored = sorted((table or now).items())
        levee.settles("SELECT id, v FROM upt ORDER BY id", stored)
        levee.settles("SELECT * FROM of_table", [(len(stored), max((v for _, v in stored), default=None))])

    check()
    # More partitions: keys move, and the newest record still wins.
    broker.grow("ups", 5)
    wait("the new partitions", lambda: levee.source("ups")["partitions"] == 5 and levee.source("upt")["partitions"] == 5)
    log = Delivered(broker.producer(topic_metadata_refresh_interval_ms=500), "ups")
    for i in range(200, 400):
        put(i % 40, {"id": i % 40, "v": f"v{i}"} if i % 11 else None)
    log.flush()
    check()
    levee.kill()
    levee.start()
    check()
    # The table's own writes hold until the next record of the key.
    table = dict(now)
    levee.sql("INSERT INTO upt VALUES (1000, 'mine')")
    levee.sql("UPDATE upt SET v = 'changed' WHERE id = 3 OR id = 5")
    levee.sql("DELETE FROM upt WHERE id = 4")
    table |= {1000: "mine"}
    table |= {key: "changed" for key in (3, 5) if key in table}
    table.pop(4, None)
    check(table)
    put(5, {"id": 5, "v": "again"})
    put(4, {"id": 4, "v": "back"})
    log.flush()
    table |= {5: "again", 4: "back"}
    check(table)
    levee.kill()
    levee.start()
    check(table)
    # A younger view, built from the start.
    levee.sql("CREATE MATERIALIZED VIEW younger AS SELECT id, v FROM ups")
    levee.settles("SELECT id, v FROM younger ORDER BY id", sorted(now.items()))
    debezium(broker, levee)
    levee.stop()


def debezium(broker, levee):
    log = Delivered(broker.producer(), "dbz")
    now = {}
    for i in range(120):
        key = i % 17
        before = {"id": key, "v": now[key]} if key in now else None
        if i % 5 == 4 and before:
            event = {"before": before, "after": None, "op": "d"}
            now.pop(key)
        else:
            now[key] = i
            event = {"before": before, "after": {"id": key, "v": i}, "op": "u" if before else "c"}
        # Connectors repeat events after a failure, and follow a delete with a tombstone.
        for _ in range(1 + (i % 6 == 0)):
            log.write(json.dumps({"payload": event} if i % 2 else event), key=json.dumps({"id": key}), tag="d")
        if event["op"] == "d":
            log.write(None, key=json.dumps({"id": key}), tag="t")
    log.flush()
    create(levee, broker, "dbz", "id int PRIMARY KEY, v int", form="FORMAT DEBEZIUM ENCODE JSON")
    levee.sql("CREATE MATERIALIZED VIEW dbzv AS SELECT id, v FROM dbz")
    levee.settles("SELECT id, v FROM dbzv ORDER BY id", sorted(now.items()))


def tables_keep_what_they_ingest(broker, directory, full):
    """A table without a key keeps every record, whatever becomes of the topic; views follow it."""
    broker.create("tab", 3)
    log = Delivered(broker.producer(), "tab")
    for i in range(1000):
        log.write(json.dumps({"n": i, "g": i % 7}))
    log.flush()
    levee = Levee(directory, "--checkpoint-interval-ms", "200")
    create(levee, broker, "tab", "n int, g int", kind="TABLE")
    levee.sql("CREATE MATERIALIZED VIEW tabv AS SELECT g, count(*) AS n, sum(n) AS s FROM tab GROUP BY g")
    want = [(g, len(range(g, 1000, 7)), sum(range(g, 1000, 7))) for g in range(7)]
    levee.settles("SELECT g, n, s FROM tabv ORDER BY g", want)
    levee.sql("INSERT INTO tab VALUES (5000, 7)")
    levee.sql("DELETE FROM tab WHERE n = 0")
    want[0] = (0, want[0][1] - 1, want[0][2])
    want.append((7, 1, 5000))
    levee.settles("SELECT g, n, s FROM tabv ORDER BY g", want)
    wait("a checkpoint of the table", lambda: checkpointed(levee, "tab") and checkpointed(levee, "tabv"))
    levee.kill()
    broker.delete("tab")
    levee.start()
    levee.settles("SELECT count(*), sum(n) FROM tab", [(1000, sum(range(1000)) + 5000)])
    levee.settles("SELECT g, n, s FROM tabv ORDER BY g", want)
    wait("the lost topic to be noticed", lambda: levee.source("tab")["error"])
    levee.sql("INSERT INTO tab VALUES (6000, 8)")
    levee.settles("SELECT g, n, s FROM tabv ORDER BY g", want + [(8, 1, 6000)])
    levee.stop()


def checkpointed(levee, name):
    """Whether a checkpoint holds everything that a job has taken."""
    rows = levee.sql(f"SELECT epoch, checkpoint_epoch FROM levee_catalog.regions WHERE name = '{name}'")
    return rows and rows[0][1] is not None and rows[0][1] >= rows[0][0]


def an_outage(broker, directory, full):
    """The broker goes and comes back under load: the source says so, views answer, nothing is lost."""
    broker.create("out", 4)
    levee = Levee(directory)
    create(levee, broker, "out", "n int")
    levee.sql("CREATE MATERIALIZED VIEW outv AS SELECT count(*) AS n, sum(n) AS s FROM out")
    log = Delivered(broker.producer(message_timeout_ms=120_000), "out")
    for i in range(5000):
        log.write(json.dumps({"n": i}), tag=i)
    log.flush()
    levee.settles("SELECT * FROM outv", [(5000, sum(range(5000)))])
    for round in range(2 if full else 1):
        broker.stop()
        for i in range(1000):
            log.write(json.dumps({"n": i}), tag=i)
        wait("the outage to be shown", lambda: levee.source("out")["status"] == "waiting")
        assert "Kafka" in levee.source("out")["error"]
        started = levee.sql("SELECT * FROM outv")
        assert started == [(5000 + 1000 * round, sum(range(5000)) + round * sum(range(1000)))], started
        busy = cpu_seconds(levee)
        time.sleep(1)
        assert cpu_seconds(levee) - busy < 0.5, "a source that waits is busy"
        # A restart without a broker: views answer.
        levee.kill()
        levee.start()
        broker.start()
        log.flush()
        want = [(6000 + 1000 * round, sum(range(5000)) + (round + 1) * sum(range(1000)))]
        levee.settles("SELECT * FROM outv", want)
        wait("the end of the outage to be shown", lambda: levee.source("out")["status"] == "running")
    levee.stop()


def cpu_seconds(levee):
    fields = open(f"/proc/{levee.process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def retention(broker, directory, full):
    """Retention passes what a restart, a running source or a new view needs: a clear error, never a wrong answer."""
    config = {"retention_ms": 604_800_000, "segment_bytes": 1_048_576, "file_delete_delay_ms": 0}
    broker.create("ret", 1, **config)
    log = Delivered(broker.producer(), "ret")
    for i in range(100):
        log.write(json.dumps({"n": i}), tag=i)
    log.flush()
    # No checkpoint, so that a restart must read everything again.
    levee = Levee(directory, "--checkpoint-interval-ms", "3600000")
    create(levee, broker, "ret", "n int")
    levee.sql("CREATE TABLE other (a int)")
    levee.sql("CREATE MATERIALIZED VIEW retv AS SELECT count(*) AS n FROM ret")
    levee.sql("CREATE MATERIALIZED VIEW otherv AS SELECT count(*) AS n FROM other")
    levee.settles("SELECT * FROM retv", [(100,)])
    drop_head(broker, "ret", 60)
    levee.settles("SELECT * FROM retv", [(100,)])
    levee.kill()
    levee.start()
    error = wait("the view to stop", lambda: stopped(levee, "SELECT * FROM retv"))
    assert 'source "ret"' in error and "retention" in error, error
    error = str(levee.fails("CREATE MATERIALIZED VIEW late AS SELECT count(*) AS n FROM ret"))
    assert 'source "ret"' in error and "partition 0" in error and "offset 60" in error and "retention" in error, error
    levee.settles("SELECT count(*) FROM levee_catalog.jobs WHERE name = 'late'", [(0,)])
    levee.sql("INSERT INTO other VALUES (1)")
    levee.settles("SELECT * FROM otherv", [(1,)])
    levee.kill()
    # A source whose next records go while nobody reads.
    levee = Levee(f"{directory}/two", "--checkpoint-interval-ms", "100")
    create(levee, broker, "ret", "n int")
    levee.sql("CREATE MATERIALIZED VIEW retv AS SELECT count(*) AS n FROM ret")
    levee.settles("SELECT * FROM retv", [(40,)])
    wait("a checkpoint", lambda: checkpointed(levee, "retv"))
    levee.kill()
    for i in range(100, 150):
        log.write(json.dumps({"n": i}), tag=i)
    log.flush()
    drop_head(broker, "ret", 120)
    levee.start()
    error = wait("the view to stop", lambda: stopped(levee, "SELECT * FROM retv"))
    assert "offsets 100 to 119" in error and "before they were read" in error, error
    assert levee.source("ret")["status"] == "failed"
    levee.stop()


def stopped(levee, query):
    """The error of a view that has stopped, or None."""
    try:
        levee.sql(query)
        return None
    except psycopg.Error as error:
        return str(error)


def drop_head(broker, topic, before):
    """Removes records as retention does."""
    from confluent_kafka import TopicPartition

    for future in broker.admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result()


def compaction(broker, directory, full):
    """Compaction takes old records of a keyed topic: a new view is right all the same; a replay that needs them stops."""
    config = {"cleanup_policy": "compact", "segment_ms": 100, "min_cleanable_dirty_ratio": 0.01, "delete_retention_ms": 100}
    broker.create("com", 1, **config)
    log = Delivered(broker.producer(), "com")
    now = {}

    def put(i):
        now[i % 10] = i
        log.write(json.dumps({"id": i % 10, "v": i}), key=str(i % 10), tag=i)

    for i in range(500):
        put(i)
    log.flush()
    levee = Levee(directory, "--checkpoint-interval-ms", "3600000")
    create(levee, broker, "com", "id int PRIMARY KEY, v int", form="FORMAT UPSERT ENCODE JSON")
    levee.sql("CREATE MATERIALIZED VIEW comv AS SELECT id, v FROM com")
    levee.settles("SELECT id, v FROM comv ORDER BY id", sorted(now.items()))

    def compacted():
        # A record now and then closes segments, so that the cleaner may have them.
        put(len(log.records))
        log.flush()
        time.sleep(0.2)
        return kept(broker, "com") < 100

    wait("the cleaner", compacted, 90)
    levee.settles("SELECT id, v FROM comv ORDER BY id", sorted(now.items()))
    levee.sql("CREATE MATERIALIZED VIEW young AS SELECT id, v FROM com")
    levee.settles("SELECT id, v FROM young ORDER BY id", sorted(now.items()))
    # A view without a checkpoint is built anew.
    levee.kill()
    levee.start()
    levee.settles("SELECT id, v FROM comv ORDER BY id", sorted(now.items()))
    # One that must replay epochs after its checkpoint as they were, cannot: others may have seen what it said then.
    levee.stop()
    levee.start()
    for i in range(300):
        put(len(log.records))
    log.flush()
    levee.settles("SELECT id, v FROM comv ORDER BY id", sorted(now.items()))
    wait("the cleaner", compacted, 90)
    levee.kill()
    levee.start()
    error = wait("the old view to stop", lambda: stopped(levee, "SELECT * FROM comv"))
    assert 'source "com"' in error and "partition 0" in error and "compaction" in error, error
    levee.stop()


def kept(broker, topic):
    """Number of records that a reader of partition 0 still gets."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(broker.client(group_id="counter", auto_offset_reset="earliest", enable_partition_eof="true"))
    consumer.assign([TopicPartition(topic, 0, 0)])
    count = 0
    while True:
        message = consumer.poll(10)
        if message is None or (message.error() and message.error().code() == KafkaError._PARTITION_EOF):
            consumer.close()
            return count
        count += 1


def transactions(broker, directory, full):
    """Aborted and open transactions are not read; markers in the offsets do no harm."""
    broker.create("txn", 2)
    producer = broker.producer(transactional_id="t")
    producer.init_transactions()
    committed = 0
    levee = Levee(directory)
    create(levee, broker, "txn", "n int", include="INCLUDE partition AS p INCLUDE offset AS o")
    levee.sql("CREATE MATERIALIZED VIEW txnv AS SELECT count(*) AS n, count(DISTINCT n) AS d FROM txn")
    for batch in range(20):
        producer.begin_transaction()
        for i in range(10):
            producer.produce("txn", value=json.dumps({"n": batch * 10 + i}), partition=i % 2)
        if batch % 3:
            producer.commit_transaction()
            committed += 10
        else:
            producer.abort_transaction()
    levee.settles("SELECT * FROM txnv", [(committed, committed)])
    producer.begin_transaction()
    producer.produce("txn", value=json.dumps({"n": 9999}), partition=0)
    producer.flush()
    time.sleep(0.3)
    levee.settles("SELECT * FROM txnv", [(committed, committed)])
    levee.kill()
    levee.start()
    levee.settles("SELECT * FROM txnv", [(committed, committed)])
    producer.commit_transaction()
    levee.settles("SELECT * FROM txnv", [(committed + 1, committed + 1)])
    levee.sql("CREATE MATERIALIZED VIEW late AS SELECT count(*) AS n FROM txn")
    levee.settles("SELECT * FROM late", [(committed + 1,)])
    levee.stop()


def replays(broker, directory, full):
    """Dead letters come back with their envelopes when their cause is mended, once, also when the topic has lost them."""
    broker.create("rep", 3)
    log = Delivered(broker.producer(), "rep")

    def write(first, count, at):
        for i in range(first, first + count):
            log.write(json.dumps({"id": i, "at": at(i)}), tag=i, key=f"k{i}", headers={"h": f"h{i}"}, timestamp=BASE_MS + i)
        log.flush()

    write(0, 300, lambda i: "2024-01-01 00:00:00Z" if i % 3 else 1_700_000_000_000 + i)
    log.write("{", tag="broken")
    log.flush()
    levee = Levee(directory, "--checkpoint-interval-ms", "100")
    create(levee, broker, "rep", "id int, at timestamptz",
           include="INCLUDE key AS k INCLUDE partition AS p INCLUDE offset AS o INCLUDE timestamp AS t INCLUDE header 'h' AS h")  # fmt: skip
    levee.sql("CREATE MATERIALIZED VIEW repv AS SELECT id, at, k, p, o, t, h FROM rep")
    letters = "SELECT count(*) FROM levee_catalog.dead_letters WHERE source = 'rep'"
    levee.settles("SELECT count(*) FROM repv", [(200,)])
    levee.settles(letters, [(101,)])
    levee.sql("ALTER SOURCE rep SET (timestamp.unit = 'ms')")
    # Decoded in the new way from here on.
    write(300, 30, lambda i: 1_700_000_000_000 + i)
    levee.settles("SELECT count(*) FROM repv", [(230,)])
    levee.settles(letters, [(101,)])
    levee.sql("ALTER SOURCE rep REPLAY DEAD LETTERS")

    def check(view):
        levee.settles(f"SELECT count(*), count(DISTINCT id) FROM {view}", [(330, 330)])
        levee.settles(letters, [(1,)])
        for i, at, k, p, o, t, h in levee.sql(f"SELECT id, at, k, p, o, t, h FROM {view}"):
            assert log.records[(p, o)] == i and (k, h) == (f"k{i}".encode(), f"h{i}".encode()), (i, p, o, k, h)
            assert round(t.timestamp() * 1000) == BASE_MS + i, t
            assert i % 3 and i < 300 or round(at.timestamp() * 1000) == 1_700_000_000_000 + i, (i, at)

    check("repv")
    levee.kill()
    levee.start()
    check("repv")
    levee.sql("ALTER SOURCE rep REPLAY DEAD LETTERS")
    levee.sql("CREATE MATERIALIZED VIEW younger AS SELECT id, at, k, p, o, t, h FROM rep")
    check("younger")
    levee.kill()
    levee.start()
    check("repv")
    check("younger")
    levee.stop()


SECRET = "s3cr3t-pa55"


def passwords_and_encryption(broker, directory, full):
    """SASL with SCRAM, in the clear and over TLS, for a source and a sink; a wrong password; no password is shown anywhere."""
    from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    own = Broker(f"{directory}/secured")
    try:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        alice = UserScramCredentialUpsertion("alice", info, SECRET.encode())
        for future in own.admin.alter_user_scram_credentials([alice]).values():
            future.result()
        own.create("safe", 2)
        own.create("out", 1)
        log = Delivered(own.producer(), "safe")
        for i in range(100):
            log.write(json.dumps({"n": i}), tag=i)
        log.flush()
        own.stop()
        ports = secure(own.dir)
        own.start()
        levee = Levee(f"{directory}/levee")
        common = {"properties.sasl.mechanism": "SCRAM-SHA-256", "properties.sasl.username": "alice"}
        certificate = {"properties.ssl.ca.location": f"{own.dir}/broker.pem"}
        ways = {"SASL_PLAINTEXT": {}, "SASL_SSL": certificate}
        for protocol, more in ways.items():
            options = {"properties.bootstrap.server": f"127.0.0.1:{ports[protocol]}", "properties.security.protocol": protocol} | common | more
            name = protocol.lower()
            create(levee, own, name, "n int", topic="safe", **options, **{"properties.sasl.password": SECRET})
            levee.sql(f"CREATE MATERIALIZED VIEW v_{name} AS SELECT count(*) AS n, sum(n) AS s FROM {name}")
            levee.settles(f"SELECT n, s FROM v_{name}", [(100, sum(range(100)))])
            try:
                create(levee, own, "wrong", "n int", topic="safe", **options, **{"properties.sasl.password": "wr0ng"})
                raise AssertionError("a wrong password was accepted")
            except psycopg.Error as error:
                assert error.sqlstate == "08001" and "wr0ng" not in str(error), str(error)
        given = ", ".join(f"{k} = '{v}'" for k, v in options.items())
        levee.sql(f"CREATE SINK k AS SELECT n, count(*) AS c FROM sasl_ssl GROUP BY n WITH (connector = 'kafka', topic = 'out', {given}, properties.sasl.password = '{SECRET}') FORMAT UPSERT ENCODE JSON")  # fmt: skip
        wait("all records at the target", lambda: kept(own, "out") == 100)
        levee.kill()
        levee.start()
        levee.settles("SELECT n FROM v_sasl_ssl", [(100,)])
        shown_nowhere(levee)
        levee.stop()
    finally:
        own.stop()


def secure(directory):
    """Gives a stopped broker listeners with passwords, with and without TLS; answers their ports."""
    import subprocess

    from world import free_port

    store = f"{directory}/broker.p12"
    tool = ["keytool", "-alias", "broker", "-keystore", store, "-storepass", "changeit", "-storetype", "PKCS12"]
    made = ["-genkeypair", "-keyalg", "RSA", "-dname", "CN=localhost", "-ext", "SAN=ip:127.0.0.1", "-validity", "30"]
    subprocess.run([*tool, *made], check=True, capture_output=True)
    subprocess.run([*tool, "-exportcert", "-rfc", "-file", f"{directory}/broker.pem"], check=True, capture_output=True)
    ports = {"SASL_PLAINTEXT": free_port(), "SASL_SSL": free_port()}
    path = f"{directory}/broker.properties"
    lines = open(path).read().splitlines()
    for i, line in enumerate(lines):
        if line.startswith(("listeners=", "advertised.listeners=")):
            lines[i] = line + "".join(f",{name}://127.0.0.1:{port}" for name, port in ports.items())
        elif line.startswith("listener.security.protocol.map="):
            lines[i] = line + ",SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    lines += ["sasl.enabled.mechanisms=SCRAM-SHA-256", f"ssl.keystore.location={store}", "ssl.keystore.password=changeit",
              "ssl.keystore.type=PKCS12"]  # fmt: skip
    lines += [f"listener.name.{name.lower()}.scram-sha-256.sasl.jaas.config={login}" for name in ports]
    open(path, "w").write("\n".join(lines) + "\n")
    return ports


def shown_nowhere(levee):
    """The password stands in no catalog and not in the server's log."""
    named = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ('levee_catalog', 'pg_catalog')"
    for schema, name in levee.sql(named):
        try:
            rows = levee.sql(f'SELECT * FROM {schema}."{name}"')
        except psycopg.Error:
            continue
        assert SECRET not in str(rows), f"{schema}.{name} shows a password"
    for command in ("SHOW JOBS", "SHOW ALL"):
        assert SECRET not in str(levee.sql(command)), command
    assert SECRET not in open(levee.dir / "log").read(), "the log shows a password"


def flights_as_json(broker, directory, full):
    """The flights of the demo through Kafka give the views that they give through COPY."""
    from shared import expected, flights, views

    data, limit = flights.fetch(), None if full else 20_000
    columns = flights.TABLES["flights"].split("(", 1)[1].rsplit(")", 1)[0].replace("PRIMARY KEY", "")
    kinds = {c.split()[0]: c.split()[1] for c in columns.replace("\n", " ").split(",")}
    broker.create("flights", 4)
    log = Delivered(broker.producer(), "flights")
    levee = Levee(directory)
    with levee.connect() as connection:
        for table in flights.DIMENSIONS:
            connection.execute(flights.TABLES[table])
            flights.copy_dimension(connection, data, table)
        create(levee, broker, "flights", columns)
        for view in views.DEMO:
            connection.execute(view.create())
        started = time.monotonic()
        lines = list(flights.flight_lines(data, limit))
        for values in csv.reader(lines):
            record = {}
            for name, value in zip(flights.FLIGHT_COLUMNS, values):
                if value in ("", flights.NULL):
                    record[name] = None
                else:
                    record[name] = int(value) if kinds[name] in ("integer", "bigint") else value
            log.write(json.dumps(record), tag=0)
        log.flush()
        levee.sql("CREATE MATERIALIZED VIEW arrived AS SELECT count(*) AS n FROM flights")
        levee.settles("SELECT * FROM arrived", [(len(lines),)], 300)
        wrong = wait("equal views", lambda: wrong_or_fine(expected, connection, data, limit), 60)
        assert wrong == "fine", wrong
    levee.stop()
    return {"flights": len(lines), "rows_s": round(len(lines) / (time.monotonic() - started))}


def wrong_or_fine(expected, connection, data, limit):
    """`fine` if all views are right; else None for some time, because views may still be behind."""
    verdict = expected.check(connection, data, limit)
    return None if any(verdict.values()) else "fine"


CASES = [
    columns_of_the_envelope,
    start_positions,
    keyed_changes,
    tables_keep_what_they_ingest,
    an_outage,
    retention,
    compaction,
    transactions,
    replays,
    passwords_and_encryption,
    flights_as_json,
]
