"""A Kafka broker and a Levee server as child processes, and what the tests do with them."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

ROOT = Path(__file__).resolve().parents[3]
# A busy machine may need more.
WAIT_S = int(os.environ.get("LEVEE_WAIT_S", 60))


def free_port():
    """A port on which nothing listens now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def free_ports():
    """Two neighbouring ports: the broker takes both."""
    while True:
        port = free_port()
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue


def wait(what, condition, seconds=WAIT_S):
    """Waits until `condition` answers something true, and answers that."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.02)


class Broker:
    """Apache Kafka, one node."""

    def __init__(self, directory):
        self.dir, self.port = directory, free_ports()
        self.start()

    def tool(self, *args):
        subprocess.run([ROOT / "tools" / "kafka.sh", *args], check=True, stdout=subprocess.DEVNULL)

    def start(self):
        self.tool("start", self.dir, str(self.port))
        self.admin = AdminClient(self.client())

    def stop(self):
        self.tool("stop", self.dir)

    def address(self):
        return f"127.0.0.1:{self.port}"

    def client(self, **more):
        return {"bootstrap.servers": self.address(), "log_level": 0, **{k.replace("_", "."): v for k, v in more.items()}}

    def producer(self, **more):
        return Producer(self.client(linger_ms=2, queue_buffering_max_messages=1_000_000, **more))

    def create(self, topic, partitions, **config):
        config = {k.replace("_", "."): str(v) for k, v in config.items()}
        for future in self.admin.create_topics([NewTopic(topic, partitions, config=config)]).values():
            future.result()

    def grow(self, topic, partitions):
        for future in self.admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result()

    def configure(self, topic, **config):
        config = {k.replace("_", "."): str(v) for k, v in config.items()}
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config=config)
        for future in self.admin.alter_configs([resource]).values():
            future.result()

    def delete(self, topic):
        for future in self.admin.delete_topics([topic]).values():
            future.result()


class Levee:
    """The server on a data directory, started and killed again and again."""

    running = []

    def __init__(self, directory, *args):
        self.dir, self.args = Path(directory), args
        self.running.append(self)
        self.dir.mkdir(parents=True, exist_ok=True)
        self.mark = self.dir / "mark"
        self.pg, self.http = free_port(), free_port()
        self.process = None
        self.start()

    def spawn(self, kill_at=None):
        env = dict(os.environ)
        self.mark.unlink(missing_ok=True)
        if kill_at:
            env |= {"LEVEE_KILL_AT": kill_at, "LEVEE_KILL_MARK": str(self.mark)}
        binary = os.environ.get("LEVEE_BIN") or os.path.join(os.environ["CARGO_TARGET_DIR"], "debug", "levee")
        self.log = open(self.dir / "log", "a")
        self.process = subprocess.Popen(
            [binary, "serve", "--data-dir", self.dir / "data", "--pg-addr", f"127.0.0.1:{self.pg}",
             "--http-addr", f"127.0.0.1:{self.http}", *self.args],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=env)  # fmt: skip

    def ready(self):
        """Whether it answers; False if it has died."""
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/readyz", timeout=1) as answer:
                    if answer.status == 200:
                        return True
            except OSError:
                time.sleep(0.02)
        return False

    def start(self, kill_at=None):
        self.spawn(kill_at)
        if not self.ready() and not kill_at:
            raise AssertionError("levee did not start:\n" + self.tail())

    def tail(self):
        return "".join(open(self.dir / "log").readlines()[-30:])

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    @classmethod
    def kill_all(cls):
        """Ends what a failed case has left."""
        for levee in cls.running:
            if levee.process and levee.process.poll() is None:
                levee.kill()
        cls.running.clear()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        assert code == 0, f"SIGTERM ends with {code}:\n{self.tail()}"

    def connect(self):
        options = f"host=127.0.0.1 port={self.pg} user=test dbname=dev"
        return psycopg.connect(options, autocommit=True, options=f"-c statement_timeout={WAIT_S * 1000}")

    def sql(self, text):
        """Rows of one statement on a connection of its own; None if it has none."""
        with self.connect() as connection:
            cursor = connection.execute(text)
            return cursor.fetchall() if cursor.description else None

    def one(self, text):
        return self.sql(text)[0][0]

    def fails(self, text):
        """The error of a statement that must fail."""
        try:
            self.sql(text)
        except psycopg.Error as error:
            return error
        raise AssertionError(f"{text} did not fail")

    def settles(self, query, want, seconds=WAIT_S):
        """Waits until a query answers `want`; says what it answers instead."""
        deadline = time.monotonic() + seconds
        while True:
            got = self.sql(query)
            if got == want:
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"{query}\n  answers {str(got)[:2000]}\n  wanted  {str(want)[:2000]}\n{self.tail()}")
            time.sleep(0.05)

    def source(self, name):
        """Status, error and lag of a source, all partitions together."""
        rows = self.sql(f"SELECT status, error, lag, dead_letters FROM levee_catalog.sources WHERE name = '{name}'")
        return {
            "status": rows[0][0],
            "error": rows[0][1],
            "lag": sum(r[2] or 0 for r in rows),
            "dead_letters": rows[0][3],
            "partitions": len(rows),
        }


class Delivered:
    """What was written to a topic: (partition, offset) of every record, by a tag that the producer gives."""

    def __init__(self, producer, topic):
        self.producer, self.topic = producer, topic
        self.records = {}

    def write(self, value, tag=None, **more):
        tag = value if tag is None else tag

        def done(error, message):
            if error is not None:
                raise AssertionError(f"the broker refused a record: {error}")
            self.records[(message.partition(), message.offset())] = tag

        while True:
            try:
                self.producer.produce(self.topic, value=value, on_delivery=done, **more)
                break
            except BufferError:
                self.producer.poll(0.1)
        self.producer.poll(0)

    def flush(self):
        left = self.producer.flush(120)
        assert left == 0, f"{left} records were not delivered"


def say(**facts):
    """One JSON line for a reader or a script."""
    import json

    print(json.dumps(facts), flush=True)
    sys.stdout.flush()
