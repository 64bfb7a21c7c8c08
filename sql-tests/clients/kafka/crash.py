"""Exactly once: producers write while the server is killed, again and again.

In the end the multiset of (partition, offset) that a view has seen is what was produced, less the broken records, and those are
exactly the dead letters. Of the kills some fall, by failpoint, inside a checkpoint and inside the reading of the source; a mark
that the failpoint leaves confirms each, and the run fails if there were too few. The producer waits for the killer: each kill has its
share of the records, so that there is load whenever the server dies.
"""

import os
import random
import threading
import time
from array import array
from collections import Counter, deque

from cases import create
from world import wait

PARTITIONS = 8
CHECKPOINT = ["checkpoint::file", "checkpoint::manifest"]
SOURCE = ["source::read", "source::fetch"]
# Tag of a broken record; others have the id that is in them.
BROKEN = -1
NOTHING = -2
# Records between two looks at what the broker has taken.
BATCH = 1000
# Records a second beyond a kill's share, so that nothing stands still meanwhile.
TRICKLE = 2000


class Written:
    """What the broker has taken: per partition the tag of each offset."""

    def __init__(self):
        self.tags = [array("q") for _ in range(PARTITIONS)]

    def put(self, partition, offset, tag):
        tags = self.tags[partition]
        if offset >= len(tags):
            tags.extend([NOTHING] * (offset + 1 - len(tags)))
        assert tags[offset] == NOTHING, f"the broker used partition {partition}, offset {offset} twice"
        tags[offset] = tag

    def count(self):
        return sum(len(tags) - tags.count(NOTHING) for tags in self.tags)

    def broken(self):
        return {(p, o) for p, tags in enumerate(self.tags) for o, tag in enumerate(tags) if tag == BROKEN}

    def good(self):
        return (tag for tags in self.tags for tag in tags if tag >= 0)


class Load(threading.Thread):
    """Writes `count` records: most are rows, some are repeated, some are broken."""

    def __init__(self, broker, topic, count, seed):
        super().__init__(name="load", daemon=True)
        self.producer, self.topic = broker.producer(message_timeout_ms=300_000), topic
        self.written = Written()
        self.count, self.random, self.error = count, random.Random(seed), None
        self.allowed = self.made = 0
        self.over = threading.Event()

    def send(self, text, tag):
        def done(error, message):
            if error is not None:
                self.error = AssertionError(f"the broker refused a record: {error}")
            else:
                self.written.put(message.partition(), message.offset(), tag)

        while True:
            try:
                self.producer.produce(self.topic, value=text, on_delivery=done)
                break
            except BufferError:
                self.producer.poll(0.1)
        self.made += 1
        if self.made % BATCH == 0:
            self.producer.poll(0)
            if self.made > self.allowed:
                time.sleep(BATCH / TRICKLE)

    def run(self):
        try:
            while self.made < self.count and self.error is None:
                n = self.random.randrange(1 << 40)
                text = f'{{"id": {n}, "who": "user{n % 1000}", "amount": {n % 10_000}, "note": "{"x" * (n % 40)}"}}'
                kind = self.random.random()
                if kind < 0.01:
                    self.send(text[: -1 - n % 20], BROKEN)
                    continue
                # A producer that does not know whether a record arrived sends it again.
                for _ in range(2 if kind < 0.03 else 1):
                    self.send(text, n)
            left = self.producer.flush(300)
            assert left == 0, f"{left} records were not delivered"
        except Exception as error:
            self.error = error
        finally:
            self.over.set()


def exactly_once(broker, directory, full):
    """Kills under load."""
    from world import Levee

    records = int(os.environ.get("LEVEE_RECORDS", 5_000_000 if full else 60_000))
    kills = int(os.environ.get("LEVEE_KILLS", 30 if full else 6))
    inside = min(5, kills // 3)
    rng = random.Random(int(os.environ.get("LEVEE_SEED", 7)))
    broker.create("once", PARTITIONS)
    levee = Levee(directory, "--checkpoint-interval-ms", "300")
    create(levee, broker, "once", "id bigint, who text, amount int", include="INCLUDE partition AS p INCLUDE offset AS o")
    levee.sql("CREATE MATERIALIZED VIEW seen AS SELECT p, o, id FROM once")
    levee.sql("CREATE MATERIALIZED VIEW per_who AS SELECT who, count(*) AS n, sum(amount) AS s FROM once GROUP BY who")
    levee.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(n) AS n, sum(s) AS s FROM per_who")
    load = Load(broker, "once", records, seed=1)
    load.start()
    started = time.monotonic()
    done, confirmed, wanted = 0, Counter(), deque(kill_points(kills, rng))
    while wanted:
        load.allowed = records * (done + 1) // (kills + 1)
        # Before a share of the records has been written there is little to be killed in.
        wait("the load", lambda: load.made >= load.allowed * 9 // 10 or load.over.is_set(), 300)
        point = wanted.popleft()
        died = kill_at(levee, point, rng)
        done += 1
        confirmed[point] += died
        missing = [points for points in (CHECKPOINT, SOURCE) if sum(confirmed[p] for p in points) < inside]
        if not wanted and missing and done < 3 * kills:
            wanted.append(rng.choice(missing[0]))
    killed_s = time.monotonic() - started
    load.allowed = records
    load.join()
    if load.error:
        raise load.error
    counts = [sum(confirmed[p] for p in points) for points in (CHECKPOINT, SOURCE)]
    assert done >= kills and min(counts) >= inside, f"{done} kills, in checkpoint and source {counts}: too few"
    wait("the source to be read to its end", lambda: levee.source("once")["lag"] == 0, 600)
    read_s = time.monotonic() - started
    verify(levee, load.written)
    with levee.connect() as connection:
        connection.execute("SET background_ddl = on")
        connection.execute("CREATE MATERIALIZED VIEW younger AS SELECT count(*) AS n, sum(id) AS s FROM once")
    rows, ids = sum(1 for _ in load.written.good()), sum(load.written.good())
    wait("the younger view", lambda: built(levee, "younger"), 600)
    levee.settles("SELECT n, s FROM younger", [(rows, ids)])
    levee.stop()
    return {
        "records": load.written.count(),
        "rows": rows,
        "broken": len(load.written.broken()),
        "kills": done,
        "in_checkpoint": counts[0],
        "in_source": counts[1],
        "inside": {p: n for p, n in sorted(confirmed.items(), key=str) if p},
        "killed_s": round(killed_s),
        "read_s": round(read_s),
    }


def built(levee, name):
    """Whether a job is complete; one that makes no progress for a minute shows where it stands."""
    progress = levee.sql(f"SELECT rows_done, rows_total FROM levee_catalog.ddl_progress WHERE name = '{name}'")
    before = getattr(built, "seen", (None, time.monotonic()))
    if before[0] != progress:
        built.seen = (progress, time.monotonic())
    elif progress and time.monotonic() - before[1] > 60:
        state = [levee.sql(f"SELECT * FROM levee_catalog.{t}") for t in ("ddl_progress", "sources", "regions", "tasks")]
        raise AssertionError(f"{name} stands at {progress}: {state}")
    return not progress


def kill_points(kills, rng):
    """Half of the kills by failpoint, checkpoint and source in turn; the rest at any moment."""
    points = []
    for i in range(kills):
        point = (CHECKPOINT[i // 4 % 2], SOURCE[i // 4 % 2])[i % 2] if i < kills * 2 // 3 else None
        points.append(point)
    rng.shuffle(points)
    return points


def kill_at(levee, point, rng):
    """One kill and the life after it; answers whether the failpoint was where the server died."""
    if point is None:
        time.sleep(rng.uniform(0.05, 1.0))
        levee.kill()
        levee.start()
        return False
    levee.kill()
    hits = rng.randrange(1, 40) if point == "source::read" else 1
    levee.spawn(f"{point}:{hits}")
    died = died_within(levee, 10) and levee.mark.exists()
    if died:
        assert levee.mark.read_text() == point
    else:
        levee.kill()
    levee.start()
    return died


def died_within(levee, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if levee.process.poll() is not None:
            return True
        time.sleep(0.02)
    return False


def verify(levee, written):
    """Compares what views hold with what was produced."""
    rows = sum(1 for _ in written.good())
    levee.settles("SELECT count(*) FROM seen", [(rows,)], 600)
    unseen = [array("q", tags) for tags in written.tags]
    with levee.connect() as connection:
        connection.execute("SET statement_timeout = '10min'")
        with connection.cursor().copy("COPY (SELECT p, o, id FROM seen) TO STDOUT") as copy:
            for row in lines(copy):
                p, o, n = map(int, row.split(b"\t"))
                if unseen[p][o] != n or n < 0:
                    raise AssertionError(f"partition {p}, offset {o} holds {n}: not produced, or seen twice")
                unseen[p][o] = NOTHING
        left = [(p, o) for p, tags in enumerate(unseen) for o, tag in enumerate(tags) if tag >= 0]
        assert not left, f"{len(left)} records were not seen, such as partition and offset {left[0]}"
        letters = connection.execute('SELECT partition, "offset" FROM levee_catalog.dead_letters').fetchall()
    found, broken = Counter((int(p), o) for p, o in letters), written.broken()
    assert set(found) == broken, f"{len(found)} dead letters, {len(broken)} broken records"
    assert max(found.values(), default=1) == 1, "a dead letter is doubled"
    amounts = sum(tag % 10_000 for tag in written.good())
    assert levee.sql("SELECT n, s FROM total") == [(rows, amounts)]


def lines(copy):
    """Lines of COPY's text, however it is cut."""
    rest = b""
    for data in copy:
        *whole, rest = (rest + bytes(data)).split(b"\n")
        yield from whole
    assert not rest


CASES = [exactly_once]
