"""The database servers: PostgreSQL, pgbouncer in front of it, MariaDB."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import signal
from typing import ClassVar

from tests.support.services.engine import Engine, program_path

POSTGRES_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "autovacuum": "off",  # it locks the tables of tests that ask whether a table is free
    "max_connections": "300",
    "max_locks_per_transaction": "1024",
    "max_prepared_transactions": "5",
    "shared_buffers": "64MB",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "all",
    "timezone": "UTC",
    "log_line_prefix": "%m [%p] %a %d ",
}


def scram(password: str) -> str:
    """What PostgreSQL keeps of a password (RFC 5802), made with one round of the hash instead of 4,096: they guard
    passwords that can be guessed, which a random one is not, and cost a client 3 ms of a processor per connection."""
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    kept = (base64.b64encode(part).decode() for part in (salt, stored, hmac.digest(salted, b"Server Key", "sha256")))
    return "SCRAM-SHA-256$1:{}${}:{}".format(*kept)


def psql(engine: Engine, database: str, sql: str, wait: float = 10) -> str:
    """Have PostgreSQL's own client run ``sql``; what it printed."""
    host, port, user = engine.server["host"], str(engine.server["port"]), engine.server["user"]
    options = ("-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", host, "-p", port, "-U", user, "-d", database)
    secret = {"PGPASSWORD": engine.server["password"], "PGCONNECT_TIMEOUT": "5"}
    return engine.run(program_path("psql"), *options, text=sql, wait=wait, **secret)


class Postgres(Engine):
    program = "postgres"
    needs: ClassVar = {"initdb": "postgresql", "postgres": "postgresql", "psql": "postgresql-client"}
    runs_as = "postgres"
    stop_signal = signal.SIGINT  # SIGTERM waits for the clients to leave
    abort_signal = signal.SIGQUIT  # SIGKILL would leave its shared memory behind

    def create(self) -> None:
        password = self.write_secret("password", scram(self.server["password"]) + "\n")
        self.run(
            program_path("initdb"), "--pgdata", str(self.data), "--username", self.server["user"],
            "--pwfile", str(password), "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync",
        )  # fmt: skip
        password.unlink()

    def configure(self) -> None:
        # Left by a crash.  The process is dead, but while init has not reaped it PostgreSQL would believe it alive.
        self.data.joinpath("postmaster.pid").unlink(missing_ok=True)

    def command(self) -> list[str]:
        settings = {**POSTGRES_SETTINGS, "port": str(self.server["port"])}
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return [program_path("postgres"), "-D", str(self.data), *options]

    def version(self) -> str:
        return psql(self, "postgres", "SHOW server_version").split()[0]

    def prepare(self) -> None:
        # In template1, so that every test database has it from its creation.
        psql(self, "template1", "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        if self.server["name"] not in psql(self, "postgres", "SELECT datname FROM pg_database").split():
            psql(self, "postgres", f"CREATE DATABASE {self.server['name']}")


class Pgbouncer(Engine):
    program = "pgbouncer"
    needs: ClassVar = {"pgbouncer": "pgbouncer", "psql": "postgresql-client"}
    runs_as = "postgres"
    stop_signal = signal.SIGKILL  # it has no state, and what each other signal waits for differs between versions
    ours: ClassVar[dict[str, object]] = {"pool_mode": "transaction"}

    def configure(self) -> None:
        behind = self.servers["postgres"]
        users = self.write_secret("users", f'"{self.server["user"]}" "{self.server["password"]}"\n')
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.server["port"],
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": users,
            "admin_users": self.server["user"],
            "max_client_conn": 500,
            "default_pool_size": 20,
            "ignore_startup_parameters": "extra_float_digits",
            "server_idle_timeout": 1,  # DROP DATABASE waits 5 s at most for other sessions to leave
            "server_login_retry": 1,  # default 15 s: that long it would refuse after a restart of PostgreSQL
            **self.ours,
        }
        lines = [f"{key} = {value}" for key, value in settings.items()]
        databases = f"[databases]\n* = host={behind['host']} port={behind['port']}\n"
        self.write_secret("pgbouncer.ini", databases + "\n[pgbouncer]\n" + "\n".join(lines) + "\n")

    def command(self) -> list[str]:
        return [program_path("pgbouncer"), str(self.directory / "pgbouncer.ini")]

    def version(self) -> str:
        psql(self, self.server["name"], "SELECT 1")  # through to PostgreSQL, not only to the pooler
        return psql(self, "pgbouncer", "SHOW VERSION").split()[-1]


class MariaDB(Engine):
    program = "mariadbd"
    needs: ClassVar = {
        "mariadbd": "mariadb-server",
        "mariadb-install-db": "mariadb-server",
        "mariadb": "mariadb-client",
    }
    runs_as = "mysql"
    ours: ClassVar = {"plugin-load-add": "metadata_lock_info"}  # options that the other of the two does not know

    def create(self) -> None:
        self.install(program_path("mariadb-install-db"), "--skip-test-db")

    def install(self, program: str, *options: str) -> None:
        """Make the data directory, beside others who make theirs: see "tmpdir" below."""
        self.make_directory("tmp")
        own = {"TMPDIR": str(self.directory / "tmp")}
        self.run(program, "--no-defaults", f"--datadir={self.data}", *options, wait=300, **own)

    def path(self) -> str:
        return program_path(self.program)

    def configure(self) -> None:
        user, password, name = self.server["user"], self.server["password"], self.server["name"]
        statements = [
            f"CREATE DATABASE IF NOT EXISTS {name};",
            f"CREATE USER IF NOT EXISTS '{user}'@'127.0.0.1' IDENTIFIED BY '{password}';",
            f"GRANT ALL PRIVILEGES ON *.* TO '{user}'@'127.0.0.1' WITH GRANT OPTION;",
        ]
        self.write_secret("init.sql", "\n".join(statements) + "\n")

    def command(self) -> list[str]:
        options = {
            "datadir": self.data,
            "init-file": self.directory / "init.sql",
            "socket": self.directory / "socket",
            "pid-file": self.directory / "pid",
            "bind-address": "127.0.0.1",
            "port": self.server["port"],
            # a server that starts deletes every temporary table it finds there, another server's too
            "tmpdir": self.directory / "tmp",
            "max-connections": 300,
            "character-set-server": "utf8mb4",
            "default-time-zone": "+00:00",
            **self.ours,
            "performance-schema": "ON",
            "performance-schema-instrument": "wait/lock/metadata/sql/mdl=ON",
            "innodb-buffer-pool-size": "64M",
            "innodb-flush-log-at-trx-commit": 0,
        }
        arguments = [f"--{key}={value}" for key, value in options.items()]
        return [self.path(), "--no-defaults", "--skip-log-bin", "--skip-name-resolve", *arguments]

    def version(self) -> str:
        host, port, user = self.server["host"], self.server["port"], self.server["user"]
        options = ("--no-defaults", "--batch", "--skip-column-names", "--connect-timeout=5", "--protocol=tcp")
        address = (f"--host={host}", f"--port={port}", f"--user={user}", self.server["name"])
        secret = {"MYSQL_PWD": self.server["password"]}
        return self.run(program_path("mariadb"), *options, *address, text="SELECT VERSION()", wait=10, **secret)
