"""Servers of one test's own, of a kind that the shared ones are not: a standby of PostgreSQL, other modes of
pgbouncer, a node of Galera, a ZooKeeper that asks for a password."""

from __future__ import annotations

import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from tests.conftest import eventually
from tests.support import services
from tests.support.services.databases import MariaDB, Pgbouncer, Postgres
from tests.support.services.engine import program_path
from tests.support.services.leases import ZooKeeper
from tests.support.services.process import (
    ServicesError,
    end_process,
    free_port,
    private_directory,
    start_detached,
    start_time,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.services.engine import Engine

# Of the package galera-4, without which Debian and Ubuntu install no mariadb-server.
GALERA = "/usr/lib/galera/libgalera_smm.so"

needs_programs = pytest.mark.skipif(
    services.is_external(), reason="this run uses servers of somebody else, and has no programs to start its own"
)


class Standby(Postgres):
    """A copy of the shared server that follows it, with its accounts and databases."""

    def create(self) -> None:
        primary = self.servers["postgres"]
        self.run(
            program_path("pg_basebackup"), f"--pgdata={self.data}", "--write-recovery-conf", "--wal-method=stream",
            "--checkpoint=fast", "--no-sync", f"--host={primary['host']}", f"--port={primary['port']}",
            f"--username={primary['user']}", PGPASSWORD=primary["password"],
        )  # fmt: skip

    def prepare(self) -> None:
        """It has everything from its primary, and takes nothing else."""


class SessionPooler(Pgbouncer):
    """pgbouncer in session mode."""

    ours: ClassVar = {"pool_mode": "session"}


class TurningPooler(Pgbouncer):
    """pgbouncer in transaction mode that gives away its longest idle session first."""

    ours: ClassVar = {"pool_mode": "transaction", "server_round_robin": 1, "server_idle_timeout": 60}


class Galera(MariaDB):
    """A node that is a cluster by itself, with the account of the shared server and an empty database."""

    def command(self) -> list[str]:
        own = f"tcp://127.0.0.1:{free_port()}"
        options = {
            "wsrep-on": "ON",
            "wsrep-provider": GALERA,
            "wsrep-cluster-address": "gcomm://",
            "wsrep-node-address": "127.0.0.1",
            "wsrep-provider-options": f"gmcast.listen_addr={own};gcache.size=1M",
            "binlog-format": "ROW",
            "innodb-autoinc-lock-mode": 2,
        }
        # nothing shows named locks here
        kept = [part for part in super().command() if not part.startswith(("--plugin-load", "--performance-schema"))]
        return [*kept, *(f"--{key}={value}" for key, value in options.items())]


class SaslZooKeeper(ZooKeeper):
    """One that talks to clients only if they have logged in with DIGEST-MD5."""

    accounts: ClassVar = {"bob": "a-password", "ops": "another-password"}

    def configure(self) -> None:
        super().configure()
        users = "\n".join(f'  user_{name}="{password}"' for name, password in self.accounts.items())
        self.write_secret(
            "jaas.conf", f"Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n{users};\n}};\n"
        )

    def command(self) -> list[str]:
        options = {
            "java.security.auth.login.config": self.directory / "jaas.conf",
            "zookeeper.authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "zookeeper.sessionRequireClientSASLAuth": "true",
        }
        java, *rest = super().command()
        return [java, *(f"-D{key}={value}" for key, value in options.items()), *rest]


@contextmanager
def running(kind: type[Engine], like: str) -> Iterator[int]:
    """The port of a new server of that kind, with the account of the shared server ``like``; gone at the end."""
    name = kind.__name__.lower()
    home = private_directory(f"distlock-{name}-{secrets.token_hex(6)}")
    shared = services.load()
    engine = kind(name, home, {**shared, name: {**shared[like], "port": free_port()}})
    pid = None
    try:
        if engine.account:
            shutil.chown(home, engine.account.pw_uid, engine.account.pw_gid)
        engine.create()
        engine.configure()
        pid = start_detached(engine.command(), engine.account, home, engine.log)
        eventually(lambda: _answers(engine, pid), f"{name} does not answer", engine.ready_within, pause=0.1)
        engine.prepare()
        yield engine.server["port"]
    finally:
        if pid is not None and start_time(pid) is not None:
            end_process(pid, engine.abort_signal)
        shutil.rmtree(home, ignore_errors=True)


def _answers(engine: Engine, pid: int) -> bool:
    try:
        engine.version()
    except ServicesError:
        if start_time(pid) is None:
            pytest.fail(f"{engine.name} has ended: {Path(engine.log).read_text(errors='replace')[-3000:]}")
        return False
    return True
