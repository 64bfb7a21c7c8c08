"""PostgreSQL sinks over TLS: every sslmode against a server that lets nobody in without it. One JSON line a case."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import psycopg

from services import Levee, Postgres, free_port, terminate, wait_until

PASSWORD = "pa55w0rd"


class TlsPostgres(Postgres):
    """PostgreSQL 15 that also listens at a port, for encrypted connections with a password only."""

    def __init__(self):
        self.port = free_port()
        super().__init__()
        with self.connect() as pg:
            pg.execute(f"CREATE ROLE writer LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        self.cut_off()
        data = os.path.join(self.dir, "data")
        authority(self.dir, "authority")
        authority(self.dir, "stranger")
        certificate(self.dir, "authority", "server")
        for name in ("server.crt", "server.key"):
            shutil.copy(os.path.join(self.dir, name), data)
            os.chmod(os.path.join(data, name), 0o600)
        with open(os.path.join(data, "pg_hba.conf"), "w") as hba:
            hba.write("local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\nhostssl all all ::1/128 scram-sha-256\n")
        with open(os.path.join(data, "postgresql.conf"), "a") as conf:
            conf.write(f"\nssl = on\nport = {self.port}\nlisten_addresses = 'localhost'\n")
        if self.user:
            subprocess.run(["chown", "-R", "postgres:", self.dir], check=True)
        self.start()

    def start(self):
        log = open(os.path.join(self.dir, "log"), "a")
        self.process = subprocess.Popen(
            ["timeout", "-s", "INT", "3600", *self.user, self.program("postgres"), "-D", os.path.join(self.dir, "data"), "-k", self.dir,
             "-p", str(self.port), "-c", "timezone=UTC"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        wait_until("PostgreSQL accepts connections", 60, self.ready)

    def connect(self):
        return psycopg.connect(f"host={self.dir} port={self.port} user=postgres dbname=postgres", autocommit=True)


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, capture_output=True)


def authority(directory, name):
    path = os.path.join(directory, name)
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{path}.key", "-out", f"{path}.crt", "-days", "30",
            "-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    os.chmod(f"{path}.crt", 0o644)


def certificate(directory, signer, name):
    path, signer = os.path.join(directory, name), os.path.join(directory, signer)
    with open(f"{path}.ext", "w") as ext:
        ext.write("basicConstraints=CA:FALSE\nsubjectAltName=DNS:localhost\nextendedKeyUsage=serverAuth\n")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{path}.key", "-out", f"{path}.csr", "-subj", "/CN=localhost")
    openssl("x509", "-req", "-in", f"{path}.csr", "-CA", f"{signer}.crt", "-CAkey", f"{signer}.key", "-CAcreateserial", "-days", "30",
            "-extfile", f"{path}.ext", "-out", f"{path}.crt")


def main():
    directory = tempfile.mkdtemp(prefix="levee-tls-")
    postgres, levee = TlsPostgres(), Levee(directory)
    try:
        assert levee.start(), levee.text()
        ca, stranger = (os.path.join(postgres.dir, f"{n}.crt") for n in ("authority", "stranger"))
        address = f"user = 'writer', password = '{PASSWORD}', dbname = 'postgres'"
        at = lambda host, mode, root=None: (f"host = '{host}', port = '{postgres.port}', {address}, sslmode = '{mode}'"
                                            + (f", sslrootcert = '{root}'" if root else ""))
        url = (f"jdbc.url = 'jdbc:postgresql://localhost:{postgres.port}/postgres?user=writer&password={PASSWORD}"
               f"&sslmode=verify-full&sslrootcert={ca}'")
        cases = {
            "disable": (at("localhost", "disable"), "no encryption"),
            "prefer": (at("localhost", "prefer"), None),
            "require": (at("127.0.0.1", "require"), None),
            "verify_ca_other_name": (at("127.0.0.1", "verify-ca", ca), None),
            "verify_full": (at("localhost", "verify-full", ca), None),
            "verify_full_other_name": (at("127.0.0.1", "verify-full", ca), "certificate"),
            "verify_full_stranger": (at("localhost", "verify-full", stranger), "certificate"),
            "require_stranger": (at("localhost", "require", stranger), "certificate"),
            "no_such_file": (at("localhost", "verify-full", "/nowhere.crt"), "/nowhere.crt"),
            "url": (url, None),
        }
        with levee.connect() as conn, postgres.connect() as pg:
            conn.execute("CREATE TABLE t (k int PRIMARY KEY, v text)")
            conn.execute("INSERT INTO t VALUES (1, 'one')")
            for name, (options, refused) in cases.items():
                pg.execute(f"CREATE TABLE {name} (k int PRIMARY KEY, v text)")
                create = (f"CREATE SINK {name} FROM t WITH (connector = 'postgres', {options}, table.name = '{name}', type = 'upsert', "
                          "primary_key = 'k')")
                try:
                    conn.execute(create)
                    assert refused is None, f"{name} was accepted"
                except psycopg.Error as error:
                    assert refused and refused in str(error), f"{name}: {error}"
                    assert PASSWORD not in str(error), f"{name} tells the password"
                else:
                    rows = lambda: pg.execute(f"SELECT k, v FROM {name}").fetchall() == [(1, "one")]
                    wait_until(f"{name} delivers", 30, rows)
                print(json.dumps({"case": name, "refused": refused is not None, "ok": True}), flush=True)
            plain = pg.execute("SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
                               "WHERE application_name = 'levee sink' AND NOT ssl").fetchone()[0]
            assert plain == 0, f"{plain} connections of sinks are not encrypted"
            for table in ("ddl_progress", "sinks", "jobs"):
                assert PASSWORD not in str(conn.execute(f"SELECT * FROM levee_catalog.{table}").fetchall()), table
        assert terminate(levee.process) == 0
        assert PASSWORD not in levee.text(), "the log shows a password"
    finally:
        levee.kill()
        postgres.remove()
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
