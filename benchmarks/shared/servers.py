"""Servers for one run: own directory, own port on loopback, gone at the end."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

START_S_MAX = 30
STOP_S_MAX = 30


def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ServerError(RuntimeError):
    """A server did not start or stop; the message holds the end of its log."""


class Server:
    """A process that answers the PostgreSQL protocol on loopback."""

    name = "server"
    database = "dev"
    user = "dev"

    def __init__(self, directory):
        self.directory = Path(directory)
        self.port = free_port()
        self.log = self.directory / "log"
        self.process = None

    def command(self):
        """The command line."""
        raise NotImplementedError

    def start(self):
        """Starts the process and waits until it takes connections; answers how long that took, in seconds."""
        started = time.monotonic()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, start_new_session=True)
        while True:
            if self.process.poll() is not None:
                raise ServerError(f"{self.name} ended with {self.process.returncode}:\n{self.log_end()}")
            try:
                self.connect().close()
                return time.monotonic() - started
            except psycopg.OperationalError as error:
                if time.monotonic() - started > START_S_MAX:
                    self.kill()
                    raise ServerError(f"{self.name} does not answer ({error}):\n{self.log_end()}") from error
                time.sleep(0.01)

    def log_end(self):
        """The last lines that the server wrote."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-20:])

    def connect(self):
        """A connection that commits each statement."""
        connection = psycopg.connect(
            host="127.0.0.1", port=self.port, dbname=self.database, user=self.user, autocommit=True, connect_timeout=10
        )
        return connection

    def kill(self):
        """kill -9."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """Ends the process; answers its exit code."""
        if self.process is None or self.process.poll() is not None:
            return None
        self.process.send_signal(self.stop_signal())
        try:
            return self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise ServerError(f"{self.name} does not stop:\n{self.log_end()}") from error

    def stop_signal(self):
        """What asks for a clean stop."""
        return signal.SIGTERM

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()


class Levee(Server):
    """`levee serve`."""

    name = "levee"

    def __init__(self, binary, directory, parallelism=None):
        super().__init__(directory)
        self.binary = binary
        self.http_port = free_port()
        self.parallelism = parallelism

    def command(self):
        data = str(self.directory / "data")
        command = [str(self.binary), "serve", "--data-dir", data, "--pg-addr", f"127.0.0.1:{self.port}"]
        command += ["--http-addr", f"127.0.0.1:{self.http_port}"]
        if self.parallelism is not None:
            command += ["--parallelism", str(self.parallelism)]
        return command


class Postgres(Server):
    """A throw-away PostgreSQL 15 in the C locale; it is the judge, so it need not survive anything."""

    name = "postgres"
    database = "postgres"
    user = "postgres"

    def __init__(self, directory):
        super().__init__(directory)
        self.data = self.directory / "pgdata"
        self.init()

    def init(self):
        """Makes the cluster; PostgreSQL refuses root, so root hands it to the user postgres."""
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(self.directory, owner.pw_uid, owner.pw_gid)
        command = [*self.as_owner(), tool("initdb"), "--locale=C", "-E", "UTF8", "-A", "trust", "-U", "postgres"]
        done = subprocess.run([*command, "-D", str(self.data)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServerError(f"initdb failed:\n{done.stderr}")

    def as_owner(self):
        """Prefix that drops root."""
        return ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []

    def command(self):
        command = [*self.as_owner(), tool("postgres"), "-D", str(self.data), "-p", str(self.port)]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.directory}"]
        return [*command, "-c", "fsync=off", "-c", "timezone=UTC", "-c", "work_mem=64MB"]

    def stop(self):
        """A fast stop: the postmaster, not runuser, must get the signal."""
        if self.process is None or self.process.poll() is not None:
            return None
        stop = [*self.as_owner(), tool("pg_ctl"), "-D", str(self.data), "-m", "fast", "-w", "stop"]
        subprocess.run(stop, capture_output=True, check=False)
        return self.process.wait(STOP_S_MAX)


def tool(name):
    """PostgreSQL 15's own `name`, from Debian's versioned folder or the PATH."""
    versioned = Path("/usr/lib/postgresql/15/bin") / name
    if versioned.exists():
        return str(versioned)
    found = shutil.which(name)
    if found is None:
        raise ServerError(f"{name} of PostgreSQL 15 is missing: apt-get install postgresql-15")
    return found


class Scratch:
    """A temporary directory that another user may enter."""

    def __enter__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="levee-"))
        self.directory.chmod(0o755)
        return self.directory

    def __exit__(self, *_):
        shutil.rmtree(self.directory, ignore_errors=True)
