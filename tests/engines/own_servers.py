"""Servers of one test's own, of a kind that the shared ones are not: a standby of PostgreSQL, other modes of
pgbouncer, a node of Galera, a ZooKeeper that asks for a password, an ensemble of
three."""

from __future__ import annotations

import secrets
import shutil
import signal
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pytest

from tests.conftest import eventually
from tests.faults.proxy import Proxy
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
    from collections.abc import Iterator, Mapping

    from tests.support.services.engine import Engine

E = TypeVar("E", bound="Engine")

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


class CarelessPooler(Pgbouncer):
    """pgbouncer in session mode that hands on a session as its client has left it."""

    ours: ClassVar = {"pool_mode": "session", "server_reset_query": "", "server_idle_timeout": 60}


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


class EnsembleServer(ZooKeeper):
    """One of several servers that elect a leader."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.pid: int | None = None
        self.ways: list[Proxy] = []

    def join(self, number: int, peers: Mapping[str, str]) -> None:
        """Become server ``number`` of those."""
        self.ours = {"initLimit": 50, "syncLimit": 25, **peers}
        self.create()
        self.configure()
        (self.data / "myid").write_text(f"{number}\n")

    def start(self) -> None:
        """Start it; it answers clients once it has found the others."""
        self.pid = start_detached(self.command(), self.account, self.directory, self.log)

    def kill(self) -> None:
        """Let it end at once, as by a loss of power. Its data stays."""
        if self.pid is not None and start_time(self.pid) is not None:
            end_process(self.pid, signal.SIGKILL)

    def mode(self) -> str:
        """What it is: "leader", "follower", or nothing if it serves no clients at present."""
        try:
            said = self.ask("srvr")
        except ServicesError:
            return ""
        return next((line.partition(": ")[2] for line in said.splitlines() if line.startswith("Mode: ")), "")


@contextmanager
def ensemble(size: int = 3) -> Iterator[list[EnsembleServer]]:
    """That many ZooKeeper servers which have elected a leader; gone at the end. The first one, which never leads,
    reaches the others through its ``ways``."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(_made(EnsembleServer, "zookeeper", f"ensemble{number}")) for number in range(size)
        ]
        ports = [(free_port(), free_port()) for _ in servers]
        ways = servers[0].ways = [stack.enter_context(Proxy("127.0.0.1", port)) for port, _ in ports[1:]]
        for number, server in enumerate(servers):
            doors = [port for port, _ in ports] if number else [ports[0][0], *(way.port for way in ways)]
            peers = [f"127.0.0.1:{door}:{election}" for door, (_, election) in zip(doors, ports, strict=True)]
            stack.callback(server.kill)
            server.join(number + 1, {f"server.{peer}": address for peer, address in enumerate(peers, start=1)})
            server.start()
        eventually(lambda: all(server.mode() for server in servers), "no leader", servers[0].ready_within, pause=0.1)
        yield servers


@contextmanager
def _made(kind: type[E], like: str, name: str) -> Iterator[E]:
    """A server of that kind with a directory and a port of its own, not yet set up; gone at the end."""
    home = private_directory(f"distlock-{name}-{secrets.token_hex(6)}")
    shared = services.load()
    engine = kind(name, home, {**shared, name: {**shared[like], "port": free_port()}})
    try:
        if engine.account:
            shutil.chown(home, engine.account.pw_uid, engine.account.pw_gid)
        yield engine
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def running(kind: type[Engine], like: str) -> Iterator[int]:
    """The port of a new server of that kind, with the account of the shared server ``like``; gone at the end."""
    with _made(kind, like, kind.__name__.lower()) as engine:
        pid = None
        try:
            engine.create()
            engine.configure()
            pid = start_detached(engine.command(), engine.account, engine.directory, engine.log)
            eventually(lambda: _answers(engine, pid), f"{engine.name} does not answer", engine.ready_within, pause=0.1)
            engine.prepare()
            yield engine.server["port"]
        finally:
            if pid is not None and start_time(pid) is not None:
                end_process(pid, engine.abort_signal)


def _answers(engine: Engine, pid: int) -> bool:
    try:
        engine.version()
    except ServicesError:
        if start_time(pid) is None:
            pytest.fail(f"{engine.name} has ended: {Path(engine.log).read_text(errors='replace')[-3000:]}")
        return False
    return True
