"""Exactly once: producers write while the server is killed, again and again.

In the end the multiset of (partition, offset) that a view has seen is what was produced, less the broken records, and those are
exactly the dead letters. Of the kills some fall, by failpoint, inside a checkpoint and inside the reading of the source; a mark
that the failpoint leaves confirms each.
"""

import json
import os
import random
import threading
import time
from collections import Counter

from cases import create
from world import Delivered, Levee, wait

PARTITIONS = 8
CHECKPOINT = ["checkpoint::file", "checkpoint::manifest"]
SOURCE = ["source::read", "source::fetch"]
BROKEN = "broken"


class Load(threading.Thread):
    """Writes `count` records: most are rows, some are repeated, some are broken."""

    def __init__(self, broker, topic, count, seed):
        super().__init__(name="load", daemon=True)
        self.log = Delivered(broker.producer(message_timeout_ms=300_000), topic)
        self.count, self.random, self.error = count, random.Random(seed), None
        self.rate = None
        self.over = threading.Event()

    def run(self):
        try:
            started = time.monotonic()
            written = 0
            while written < self.count:
                n = self.random.randrange(1 << 40)
                text = json.dumps({"id": n, "who": f"user{n % 1000}", "amount": n % 10_000, "note": "x" * (n % 40)})
                kind = self.random.random()
                if kind < 0.01:
                    self.log.write(text[: -1 - n % 20], tag=BROKEN)
                    written += 1
                    continue
                # A producer that does not know whether a record arrived sends it again.
                for _ in range(2 if kind < 0.03 else 1):
                    self.log.write(text, tag=n)
                    written += 1
                if self.rate and written % 100 == 0:
                    pause = written / self.rate - (time.monotonic() - started)
                    if pause > 0:
                        time.sleep(pause)
            self.log.flush()
        except Exception as error:
            self.error = error
        finally:
            self.over.set()


def exactly_once(broker, directory, full):
    """Kills under load."""
    records = int(os.environ.get("LEVEE_RECORDS", 5_000_000 if full else 60_000))
    kills = int(os.environ.get("LEVEE_KILLS", 30 if full else 6))
    rng = random.Random(int(os.environ.get("LEVEE_SEED", 7)))
    broker.create("once", PARTITIONS)
    levee = Levee(directory, "--checkpoint-interval-ms", "300")
    create(levee, broker, "once", "id bigint, who text, amount int", include="INCLUDE partition AS p INCLUDE offset AS o")
    levee.sql("CREATE MATERIALIZED VIEW seen AS SELECT p, o, id FROM once")
    levee.sql("CREATE MATERIALIZED VIEW per_who AS SELECT who, count(*) AS n, sum(amount) AS s FROM once GROUP BY who")
    levee.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(n) AS n, sum(s) AS s FROM per_who")
    load = Load(broker, "once", records, seed=1)
    # The load lasts about as long as the kills.
    load.rate = records / (kills * (5.0 if full else 1.5))
    load.start()
    started = time.monotonic()
    points = kill_points(kills, rng)
    confirmed = kill_all(levee, points, rng)
    if full:
        # At least five inside of each, while there is load.
        for inside in (CHECKPOINT, SOURCE):
            while sum(confirmed[p] for p in inside) < 5 and not load.over.is_set():
                confirmed += kill_all(levee, [rng.choice(inside)], rng)
    load.join()
    if load.error:
        raise load.error
    wait("the source to be read to its end", lambda: levee.source("once")["lag"] == 0, 600)
    verify(levee, load.log.records, full)
    levee.sql("CREATE MATERIALIZED VIEW younger AS SELECT count(*) AS n, sum(id) AS s FROM once")
    want = [t for t in load.log.records.values() if t != BROKEN]
    levee.settles("SELECT n, s FROM younger", [(len(want), sum(want))], 600)
    levee.stop()
    return {
        "records": len(load.log.records),
        "broken": sum(t == BROKEN for t in load.log.records.values()),
        "kills": kills,
        "in_checkpoint": sum(confirmed[p] for p in CHECKPOINT),
        "in_source": sum(confirmed[p] for p in SOURCE),
        "killed_s": round(time.monotonic() - started),
    }


def kill_points(kills, rng):
    """Half of the kills by failpoint, checkpoint and source in turn; the rest at any moment."""
    points = []
    for i in range(kills):
        point = (CHECKPOINT[i // 4 % 2], SOURCE[i // 4 % 2])[i % 2] if i < kills * 2 // 3 else None
        points.append(point)
    rng.shuffle(points)
    return points


def kill_all(levee, points, rng):
    """Restarts the server with each failpoint in turn; answers how often each is confirmed."""
    confirmed = Counter()
    for point in points:
        levee.kill()
        if point is None:
            levee.start()
            time.sleep(rng.uniform(0.05, 1.0))
            continue
        hits = rng.randrange(1, 60) if point == "source::read" else 1
        levee.spawn(f"{point}:{hits}")
        died = died_within(levee, 8)
        if died and levee.mark.exists():
            assert levee.mark.read_text() == point
            confirmed[point] += 1
    if levee.process.poll() is not None:
        levee.start()
    else:
        levee.kill()
        levee.start()
    return confirmed


def died_within(levee, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if levee.process.poll() is not None:
            return True
        time.sleep(0.02)
    return False


def verify(levee, records, full):
    """Compares what views hold with what was produced."""
    good = {place: tag for place, tag in records.items() if tag != BROKEN}
    broken = {place for place, tag in records.items() if tag == BROKEN}
    levee.settles("SELECT count(*) FROM seen", [(len(good),)], 600)
    with levee.connect() as connection, connection.transaction(), connection.cursor("seen") as cursor:
        cursor.itersize = 50_000
        cursor.execute("SELECT p, o, id FROM seen")
        seen = 0
        for p, o, n in cursor:
            seen += 1
            if good.pop((p, o), None) != n:
                raise AssertionError(f"partition {p}, offset {o} holds {n}: not produced, or seen twice")
    assert not good, f"{len(good)} records were not seen, such as {next(iter(good.items()))}"
    letters = levee.sql('SELECT partition, "offset" FROM levee_catalog.dead_letters')
    found = Counter((int(p), o) for p, o in letters)
    assert set(found) == broken, f"{len(found)} dead letters, {len(broken)} broken records"
    assert max(found.values(), default=1) == 1, "a dead letter is doubled"
    amounts = [t % 10_000 for t in records.values() if t != BROKEN]
    assert levee.sql("SELECT n, s FROM total") == [(len(amounts), sum(amounts))]


CASES = [exactly_once]
