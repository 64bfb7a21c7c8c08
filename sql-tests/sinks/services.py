"""The processes around a sink: levee, PostgreSQL, Kafka. Each can be killed and started again on its own data."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

import psycopg

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(what, seconds, test):
    deadline = time.time() + seconds
    while True:
        answer = test()
        if answer:
            return answer
        if time.time() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


class Levee:
    """One data directory; one process after another on it."""

    def __init__(self, directory):
        self.dir = directory
        self.binary = os.environ.get("LEVEE_BIN") or os.path.join(os.environ["CARGO_TARGET_DIR"], "debug", "levee")
        self.process = None
        self.lives = 0
        self.connected = 0

    def start(self, env=None):
        """Starts; False if it ended before it was ready (a failpoint in recovery)."""
        self.lives += 1
        self.pg, self.http = free_port(), free_port()
        self.log = os.path.join(self.dir, f"levee{self.lives}.log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [self.binary, "serve", "--data-dir", os.path.join(self.dir, "data"),
                 "--pg-addr", f"127.0.0.1:{self.pg}", "--http-addr", f"127.0.0.1:{self.http}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **(env or {})})
        deadline = time.time() + 60
        while time.time() < deadline:
            if self.process.poll() is not None:
                return False
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/readyz", timeout=1) as answer:
                    if answer.status == 200:
                        return True
            except OSError:
                pass
            time.sleep(0.02)
        raise AssertionError("levee did not start:\n" + self.text())

    def running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        if self.running():
            self.process.kill()
        if self.process is not None:
            self.process.wait()

    def connect(self):
        return psycopg.connect(f"host=127.0.0.1 port={self.pg} user=test dbname=dev connect_timeout=10", autocommit=True)

    def text(self):
        return open(self.log, errors="replace").read()

    def complaints(self):
        """Lines of the last life's log that nobody expected: a target that is out is a warning."""
        return [line for line in self.text().splitlines()
                if (" ERROR " in line or "panicked" in line or " WARN " in line)
                and "target does not take changes" not in line]


class Postgres:
    """PostgreSQL 15 on a Unix socket."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="levee-sink-pg-")
        os.chmod(self.dir, 0o755)
        data = os.path.join(self.dir, "data")
        os.mkdir(data)
        self.user = []
        if os.getuid() == 0:
            subprocess.run(["chown", "-R", "postgres:", self.dir], check=True)
            self.user = ["runuser", "-u", "postgres", "--"]
        self.run("initdb", "--locale=C", "-E", "UTF8", "-A", "trust", "-U", "postgres", "--no-sync", "-D", data)
        self.process = None
        self.start()

    def program(self, name):
        debian = f"/usr/lib/postgresql/15/bin/{name}"
        return debian if os.path.exists(debian) else name

    def run(self, name, *args):
        subprocess.run([*self.user, self.program(name), *args], check=True, cwd="/", stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)

    def start(self):
        log = open(os.path.join(self.dir, "log"), "a")
        # The time limit only matters if this process is killed: nothing is left behind.
        self.process = subprocess.Popen(
            ["timeout", "-s", "INT", "3600", *self.user, self.program("postgres"), "-D", os.path.join(self.dir, "data"),
             "-k", self.dir, "-c", "listen_addresses=", "-c", "timezone=UTC", "-c", "full_page_writes=off"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        wait_until("PostgreSQL accepts connections", 60, self.ready)

    def ready(self):
        try:
            self.connect().close()
            return True
        except psycopg.OperationalError:
            return False

    def connect(self):
        return psycopg.connect(f"host={self.dir} user=postgres dbname=postgres", autocommit=True)

    def options(self, table):
        return f"connector = 'postgres', host = '{self.dir}', user = 'postgres', dbname = 'postgres', table.name = '{table}'"

    def cut_off(self):
        """Immediate shutdown: connections break, transactions under way are lost."""
        self.run("pg_ctl", "stop", "-m", "immediate", "-D", os.path.join(self.dir, "data"))
        self.process.wait()

    def remove(self):
        if self.process.poll() is None:
            self.cut_off()
        shutil.rmtree(self.dir, ignore_errors=True)


class Kafka:
    """Apache Kafka itself, one node; tools/kafka.sh fetches its jars."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="levee-sink-kafka-")
        # The second port is the controller's.
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.start()

    def script(self, *args):
        subprocess.run([os.path.join(ROOT, "tools", "kafka.sh"), *args], check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)

    def start(self):
        self.script("start", self.dir, str(self.port))

    def cut_off(self):
        self.script("kill", self.dir)

    def options(self, topic):
        return f"connector = 'kafka', properties.bootstrap.server = '{self.address}', topic = '{topic}'"

    def remove(self):
        self.script("kill", self.dir)
        shutil.rmtree(self.dir, ignore_errors=True)


def terminate(process):
    process.send_signal(signal.SIGTERM)
    return process.wait(60)
