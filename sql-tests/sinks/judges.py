"""Reads what a sink has written, with other programs' libraries, and applies it strictly: a row that is inserted twice, updated from
another value or deleted without being there is a fault, even if the contents came out right in the end."""

import asyncio
import csv
import json
import os
import re
from decimal import Decimal


def parse(text):
    """JSON with exact numbers."""
    return json.loads(text, parse_float=Decimal, parse_int=int)


class Keyed:
    """Rows by key, changed strictly."""

    def __init__(self, what, key):
        self.what, self.key, self.rows = what, key, {}

    def of(self, row):
        return tuple(row[k] for k in self.key)

    def insert(self, row):
        assert self.of(row) not in self.rows, f"{self.what}: inserted twice: {row}"
        self.rows[self.of(row)] = row

    def update(self, row, before=None):
        found = self.rows.get(self.of(row))
        assert found is not None, f"{self.what}: updated, but not there: {row}"
        assert before is None or found == before, f"{self.what}: updated from {before}, but it was {found}"
        self.rows[self.of(row)] = row

    def delete(self, row):
        found = self.rows.pop(self.of(row), None)
        assert found == row, f"{self.what}: deleted {row}, but it was {found}"


FILE = re.compile(r"levee-[0-9a-f]{16}-(\d{16})(?:_(\d+))?-(\d{16})(?:_(\d+))?\.(json|csv)")


def files(directory):
    """The files in the order of their epochs; each begins where the one before ended."""
    found = []
    for name in os.listdir(directory):
        if name.startswith("."):
            continue
        match = FILE.fullmatch(name)
        assert match, f"a foreign file: {name}"
        whole = 1 << 62
        place = lambda epoch, part: (int(epoch), int(part) if part else whole)
        found.append((place(*match.group(3, 4)), place(*match.group(1, 2)), name))
    found.sort()
    for (before, _, _), (_, start, name) in zip(found, found[1:]):
        assert start == before, f"{name} begins at {start}, the file before it ends at {before}"
    return [os.path.join(directory, name) for _, _, name in found]


def records(directory):
    """Rows of all files; CSV's values as text, NULL as None."""
    for path in files(directory):
        with open(path, newline="") as file:
            if path.endswith(".json"):
                yield from (parse(line) for line in file)
            else:
                yield from csv.DictReader(file)


def keyed_files(directory, key):
    state = Keyed(directory, key)
    for row in records(directory):
        op = row.pop("__op")
        getattr(state, op)(row)
    return state.rows


async def _consume(address, topic):
    from aiokafka import AIOKafkaConsumer, TopicPartition
    consumer = AIOKafkaConsumer(bootstrap_servers=address, isolation_level="read_committed", auto_offset_reset="earliest",
                                enable_auto_commit=False)
    await consumer.start()
    try:
        await consumer._client.force_metadata_update()
        partitions = [TopicPartition(topic, p) for p in await _partitions(consumer, topic)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        out = []
        while True:
            batch = await consumer.getmany(timeout_ms=300)
            for messages in batch.values():
                out.extend(messages)
            positions = [await consumer.position(p) for p in partitions]
            # A commit's own record counts as an offset, but is never handed out.
            if not batch and all(pos >= ends[p] - 1 or ends[p] == 0 for p, pos in zip(partitions, positions)):
                return sorted(out, key=lambda m: (m.partition, m.offset))
    finally:
        await consumer.stop()


async def _partitions(consumer, topic):
    for _ in range(100):
        await consumer.topics()
        found = consumer.partitions_for_topic(topic)
        if found:
            return sorted(found)
        await asyncio.sleep(0.1)
    raise AssertionError(f"topic {topic} is not there")


def consume(address, topic):
    """All committed records, per partition in order."""
    return asyncio.run(_consume(address, topic))


def create_topics(address, topics):
    async def create():
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in topics.items()])
        finally:
            await admin.close()
    asyncio.run(create())


def upsert_topic(address, topic, key):
    rows = {}
    for message in consume(address, topic):
        k = tuple(parse(message.key)[c] for c in key)
        if message.value is None:
            assert rows.pop(k, None) is not None, f"{topic}: a tombstone for {k}, which is not there"
        else:
            rows[k] = parse(message.value)
    return rows


def debezium_topic(address, topic, key):
    state = Keyed(topic, key)
    for message in consume(address, topic):
        event = parse(message.value)
        before, after, op = event["before"], event["after"], event["op"]
        if op == "c":
            assert before is None
            state.insert(after)
        elif op == "u":
            state.update(after, before)
        else:
            assert op == "d" and after is None
            state.delete(before)
    return state.rows
