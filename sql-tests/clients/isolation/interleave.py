"""Plays interleavings of sessions against PostgreSQL and against Levee, and compares what each step answered.

A spec file in `specs/`:

    setup                     SQL, run once before, until the first blank line
    CREATE TABLE t (...)

    a: BEGIN                  a step: session, statement; sessions are opened when they are first named
    b: UPDATE t SET ...       one that waits for another session is noted as waiting; its answer is noted where it came
    a: COMMIT
    b: \\close                 the session's connection is cut

    # unordered: reason       answers are compared as a set (which of two transactions a deadlock hits)
    # differs: reason         Levee is known to answer otherwise; a spec that no longer differs fails

PostgreSQL goes first. A step that it answers is waited for in Levee too; one that waits there is given some time to be answered
wrongly. LEVEE_SPECS names the specs to run, LEVEE_SHOW=1 prints the transcripts.
"""

import glob
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time

import psycopg

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from run import Server, free_port  # noqa: E402

# Tries of an interleaving that differs.
ATTEMPTS = 3
HERE = os.path.dirname(os.path.abspath(__file__))
# A step of PostgreSQL's that takes longer waits for another session.
WAIT = 0.25
# A step that PostgreSQL answered is waited for this long.
LIMIT = 30.0


class Postgres:
    """A PostgreSQL of its own, which does not run as root."""

    def __init__(self, durable=False):
        bins = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        if not bins:
            raise SystemExit("no PostgreSQL in /usr/lib/postgresql: run make setup")
        self.bin = bins[-1]
        self.dir = tempfile.mkdtemp(prefix="levee-isolation-")
        os.chmod(self.dir, 0o755)
        self.port = free_port()
        self.user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self.user:
            subprocess.run(["chown", "postgres", self.dir], check=True)
        self.data = os.path.join(self.dir, "data")
        self.call(["initdb", "-D", self.data, "--locale=C", "-E", "UTF8", "-A", "trust", "-U", "test"])
        options = f"-p {self.port} -k {self.dir} -c listen_addresses=127.0.0.1 -c deadlock_timeout=100ms"
        if not durable:
            options += " -c fsync=off"
        self.call(["pg_ctl", "-D", self.data, "-w", "-o", options, "-l", os.path.join(self.dir, "log"), "start"])
        with psycopg.connect(self.conninfo("postgres"), autocommit=True) as c:
            c.execute("CREATE DATABASE dev")

    def call(self, command):
        done = subprocess.run(self.user + [os.path.join(self.bin, command[0])] + command[1:], cwd="/",
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{command[0]} failed: {done.stdout}{done.stderr}")

    def conninfo(self, database="dev"):
        return f"host=127.0.0.1 port={self.port} user=test dbname={database}"

    def stop(self):
        self.call(["pg_ctl", "-D", self.data, "-m", "immediate", "stop"])
        subprocess.run(["rm", "-rf", self.dir], check=True)


class Session:
    """A connection with a thread that runs its statements one after another."""

    def __init__(self, conninfo):
        self.connection = psycopg.connect(conninfo, autocommit=True)
        self.todo = queue.Queue()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            sql, answer = self.todo.get()
            if sql is None:
                return
            answer.put(self.run(sql))

    def run(self, sql):
        if sql == "\\close":
            os.close(os.dup(self.connection.fileno()))
            self.connection.close()
            return "closed"
        try:
            cursor = self.connection.execute(sql)
            if cursor.description is None:
                return cursor.statusmessage
            rows = "; ".join(",".join("" if v is None else str(v) for v in row) for row in cursor.fetchall())
            return f"{cursor.statusmessage} [{rows}]"
        except psycopg.Error as e:
            return f"ERROR {e.sqlstate}"

    def send(self, sql):
        answer = queue.Queue()
        self.todo.put((sql, answer))
        return answer

    def stop(self):
        self.todo.put((None, None))
        try:
            self.connection.cancel()
            self.connection.close()
        except psycopg.Error:
            pass


class Spec:
    def __init__(self, path):
        self.name = os.path.basename(path).removesuffix(".spec")
        self.setup, self.steps, self.unordered, self.differs = [], [], False, None
        in_setup = False
        for line in open(path, encoding="utf-8"):
            line = line.rstrip("\n")
            if line == "setup":
                in_setup = True
            elif not line.strip():
                in_setup = False
            elif in_setup:
                self.setup.append(line)
            elif line.startswith("# unordered:"):
                self.unordered = True
            elif line.startswith("# differs:"):
                self.differs = line.removeprefix("# differs:").strip()
            elif not line.startswith("#"):
                session, _, sql = line.partition(":")
                self.steps.append((session.strip(), sql.strip()))


def get(answer, seconds):
    try:
        return answer.get(timeout=seconds)
    except queue.Empty:
        return None


def play(spec, conninfo, expected):
    """The transcript: (step, answer or None while it waits, answers of earlier steps that came now)."""
    with psycopg.connect(conninfo, autocommit=True) as c:
        for table in ("t", "u", "k"):
            c.execute(f"DROP TABLE IF EXISTS {table}")
        for sql in spec.setup:
            c.execute(sql)
    sessions, waiting, transcript = {}, [], []
    try:
        for number, (name, sql) in enumerate(spec.steps):
            if name not in sessions:
                sessions[name] = Session(conninfo)
            answer = sessions[name].send(sql)
            # What PostgreSQL answered at this step, its own and others'.
            wanted = None if expected is None else expected[number]
            patience = WAIT if wanted is None or wanted[0] is None else LIMIT
            own = get(answer, patience)
            later = []
            for step, waits in list(waiting):
                due = wanted is not None and any(s == step for s, _ in wanted[1])
                came = get(waits, LIMIT if due else 0.02 if wanted is None else WAIT / 4)
                if came is not None:
                    later.append((step, came))
                    waiting.remove((step, waits))
            # An answer may come a moment after that of the step that made way for it.
            if wanted is None and waiting:
                for step, waits in list(waiting):
                    came = get(waits, WAIT)
                    if came is not None:
                        later.append((step, came))
                        waiting.remove((step, waits))
            if own is None:
                waiting.append((number, answer))
            transcript.append((own, sorted(later)))
    finally:
        for session in sessions.values():
            session.stop()
    return transcript


def shown(spec, transcript):
    lines = []
    for (name, sql), (own, later) in zip(spec.steps, transcript):
        lines.append(f"  {name}: {sql} -> {own or 'waits'}")
        for step, answer in later:
            lines.append(f"    {spec.steps[step][0]}: {spec.steps[step][1]} -> {answer}")
    return "\n".join(lines)


def same(spec, ours, theirs):
    if not spec.unordered:
        return ours == theirs
    def answers(transcript):
        return sorted([own for own, _ in transcript if own] + [a for _, later in transcript for _, a in later])
    return answers(ours) == answers(theirs)


def main():
    names = os.environ.get("LEVEE_SPECS", "").split()
    paths = sorted(glob.glob(os.path.join(HERE, "specs", "*.spec")))
    specs = [s for s in map(Spec, paths) if not names or s.name in names]
    if not specs:
        raise SystemExit("no such spec")
    if os.environ.get("LEVEE_AT"):
        levee, conninfo = None, os.environ["LEVEE_AT"]
    else:
        levee = Server()
        conninfo = levee.conninfo()
    postgres = Postgres()
    failed, different = [], 0
    try:
        for spec in specs:
            # PostgreSQL does not always serve two that wait for one row in the order in which they came: what it does is asked again.
            for _ in range(ATTEMPTS):
                theirs = play(spec, postgres.conninfo(), None)
                ours = play(spec, conninfo, theirs)
                agree = same(spec, ours, theirs)
                if agree or spec.differs is not None:
                    break
            different += spec.differs is not None
            good = agree == (spec.differs is None)
            print(f"{'ok' if good else 'FAILED':6} {spec.name}" + (f" (differs: {spec.differs})" if spec.differs else ""))
            if not good or os.environ.get("LEVEE_SHOW"):
                print(f" PostgreSQL\n{shown(spec, theirs)}\n Levee\n{shown(spec, ours)}")
            if not good:
                failed.append(spec.name)
    finally:
        postgres.stop()
        if levee:
            levee.stop()
            wrong = [line for line in levee.text().splitlines() if " ERROR " in line or " WARN " in line or "panicked" in line]
            failed += wrong
            levee.remove()
    print(f"{len(specs)} interleavings, {different} known to differ, {len(failed)} failed: {' '.join(failed)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
