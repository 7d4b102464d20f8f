"""One class per server program: how its data directory is made, how it starts, how one knows that it answers.

Another engine (or five copies of one) is one more class and its entries in ENGINES.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tests.services_process import ServicesError, account, run_as, server_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

Server = dict[str, Any]
"""host, port, user, password, name: what a client needs to connect."""

POSTGRES_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "300",
    "max_locks_per_transaction": "1024",
    "shared_buffers": "64MB",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "all",
    "timezone": "UTC",
    "log_line_prefix": "%m [%p] %a %d ",
}


class Engine:
    program: ClassVar[str]  # the server itself
    needs: ClassVar[Mapping[str, str]]  # every program used -> the Debian package that brings it
    runs_as: ClassVar[str]  # the account, when we are root
    stop_signal: ClassVar[int] = signal.SIGTERM  # ends in order, without waiting for clients
    abort_signal: ClassVar[int] = signal.SIGKILL  # ends at once; the data is going to be removed
    ready_within: ClassVar[float] = 60.0

    def __init__(self, name: str, directory: Path, servers: Mapping[str, Server]) -> None:
        self.name = name
        self.directory = directory
        self.servers = servers
        self.server = servers[name]
        self.account = account(self.runs_as)

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @classmethod
    def missing(cls) -> dict[str, str]:
        """Programs that are not installed, with the package of each."""
        return {program: package for program, package in cls.needs.items() if find_program(program) is None}

    def create(self) -> None:
        """Make the data directory.  Nothing to do for an engine without one."""

    def configure(self) -> None:
        """Write the files that name ports or passwords; before every start."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def version(self) -> str:
        """Ask the server over its port, as a client would; ServicesError if it does not answer."""
        raise NotImplementedError

    def prepare(self) -> None:
        """What must stand in a server that answers; after every start, so it changes nothing the second time."""

    def run(self, *command: str, text: str = "", wait: float = 60, **environment: str) -> str:
        """Run a client or a set-up program as the server's account; its output, or ServicesError with what it said."""
        try:
            done = subprocess.run(
                command, input=text, env=server_environment(environment), cwd=self.directory, capture_output=True,
                text=True, timeout=wait, **run_as(self.account),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ServicesError(f"{self.name}: {Path(command[0]).name} gave no answer within {wait:g} s") from None
        if done.returncode:
            raise ServicesError(f"{self.name}: {Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout.strip()

    def write_secret(self, name: str, text: str) -> Path:
        """A file in the engine's directory that only its account may read."""
        path = self.directory / name
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)
        return path

    def psql(self, database: str, sql: str, wait: float = 10) -> str:
        host, port, user = self.server["host"], str(self.server["port"]), self.server["user"]
        options = ("-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", host, "-p", port, "-U", user, "-d", database)
        secret = {"PGPASSWORD": self.server["password"], "PGCONNECT_TIMEOUT": "5"}
        return self.run(program_path("psql"), *options, text=sql, wait=wait, **secret)


class Postgres(Engine):
    program = "postgres"
    needs: ClassVar = {"initdb": "postgresql", "postgres": "postgresql", "psql": "postgresql-client"}
    runs_as = "postgres"
    stop_signal = signal.SIGINT  # SIGTERM waits for the clients to leave
    abort_signal = signal.SIGQUIT  # SIGKILL would leave its shared memory behind

    def create(self) -> None:
        password = self.write_secret("password", self.server["password"] + "\n")
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
        return self.psql("postgres", "SHOW server_version").split()[0]

    def prepare(self) -> None:
        # In template1, so that every test database has it from its creation.
        self.psql("template1", "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        if self.server["name"] not in self.psql("postgres", "SELECT datname FROM pg_database").split():
            self.psql("postgres", f"CREATE DATABASE {self.server['name']}")


class Pgbouncer(Engine):
    program = "pgbouncer"
    needs: ClassVar = {"pgbouncer": "pgbouncer", "psql": "postgresql-client"}
    runs_as = "postgres"
    stop_signal = signal.SIGKILL  # it has no state, and what each other signal waits for differs between versions

    def configure(self) -> None:
        behind = self.servers["postgres"]
        users = self.write_secret("users", f'"{self.server["user"]}" "{self.server["password"]}"\n')
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.server["port"],
            "unix_socket_dir": "",
            "pool_mode": "transaction",
            "auth_type": "scram-sha-256",
            "auth_file": users,
            "admin_users": self.server["user"],
            "max_client_conn": 500,
            "default_pool_size": 20,
            "ignore_startup_parameters": "extra_float_digits",
            "server_idle_timeout": 1,  # DROP DATABASE waits 5 s at most for other sessions to leave
            "server_login_retry": 1,  # default 15 s: that long it would refuse after a restart of PostgreSQL
        }
        lines = [f"{key} = {value}" for key, value in settings.items()]
        databases = f"[databases]\n* = host={behind['host']} port={behind['port']}\n"
        self.write_secret("pgbouncer.ini", databases + "\n[pgbouncer]\n" + "\n".join(lines) + "\n")

    def command(self) -> list[str]:
        return [program_path("pgbouncer"), str(self.directory / "pgbouncer.ini")]

    def version(self) -> str:
        self.psql(self.server["name"], "SELECT 1")  # through to PostgreSQL, not only to the pooler
        return self.psql("pgbouncer", "SHOW VERSION").split()[-1]


class MariaDB(Engine):
    program = "mariadbd"
    needs: ClassVar = {
        "mariadbd": "mariadb-server",
        "mariadb-install-db": "mariadb-server",
        "mariadb": "mariadb-client",
    }
    runs_as = "mysql"

    def create(self) -> None:
        self.run(program_path("mariadb-install-db"), "--no-defaults", f"--datadir={self.data}", "--skip-test-db")

    def configure(self) -> None:
        temporary = self.directory / "tmp"
        temporary.mkdir(mode=0o700, exist_ok=True)
        if self.account:
            os.chown(temporary, self.account.pw_uid, self.account.pw_gid)
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
            "plugin-load-add": "metadata_lock_info",
            "performance-schema": "ON",
            "performance-schema-instrument": "wait/lock/metadata/sql/mdl=ON",
            "innodb-buffer-pool-size": "64M",
            "innodb-flush-log-at-trx-commit": 0,
        }
        arguments = [f"--{key}={value}" for key, value in options.items()]
        return [program_path("mariadbd"), "--no-defaults", "--skip-log-bin", "--skip-name-resolve", *arguments]

    def version(self) -> str:
        host, port, user = self.server["host"], self.server["port"], self.server["user"]
        options = ("--no-defaults", "--batch", "--skip-column-names", "--connect-timeout=5", "--protocol=tcp")
        address = (f"--host={host}", f"--port={port}", f"--user={user}", self.server["name"])
        secret = {"MYSQL_PWD": self.server["password"]}
        return self.run(program_path("mariadb"), *options, *address, text="SELECT VERSION()", wait=10, **secret)


ENGINES: dict[str, type[Engine]] = {"postgres": Postgres, "pgbouncer": Pgbouncer, "mariadb": MariaDB}
"""In the order they start: pgbouncer stands in front of PostgreSQL."""


def find_program(name: str) -> str | None:
    """The program's path; Debian keeps PostgreSQL's own programs apart, one directory per major version."""
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    newest = sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    path = os.pathsep.join([*map(str, newest), os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"])
    return shutil.which(name, path=path)


def program_path(name: str) -> str:
    found = find_program(name)
    if found is None:
        package = next((engine.needs[name] for engine in ENGINES.values() if name in engine.needs), name)
        raise ServicesError(f"{name} is not installed (Debian package {package}): run `make services`")
    return found
