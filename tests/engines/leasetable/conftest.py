"""Every place where leases can be, with a clock that tests can set. The statements are the real ones, on real
databases: the clock's expression gets an offset."""

from __future__ import annotations

import os
import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock.backends.leasetable import sqlite, statements
from django_distlock.backends.leasetable.backend import LeaseTableBackend
from django_distlock.keys import derive_key
from django_distlock.records import Claim, Grant
from tests.conftest import eventually
from tests.faults.server import ask
from tests.support.unhurried import give_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SQLITE = ("file", "memory")
SERVERS = ("postgres", "mariadb")
STORES = (*SQLITE, *SERVERS)
TTL = 30.0
WAIT = 100.0
everywhere = pytest.mark.parametrize("stores", STORES, indirect=True)


class Stores:
    """Clients of one lease table: backends of one alias, as different processes have them."""

    def __init__(self, store: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.store = store
        self.database = store if store in SERVERS else "default"
        self.alias = f"alias {os.getpid()} {secrets.token_hex(4)}"
        self.offset = 0.0
        self._clients: list[LeaseTableBackend] = []
        self._monkeypatch = monkeypatch
        self._pool = ThreadPoolExecutor(4)
        if store in SQLITE:
            name = f"file:{secrets.token_hex(4)}?mode=memory&cache=shared" if store == "memory" else folder / "db"
            monkeypatch.setitem(connections.settings["default"], "NAME", name)
        self._clock = {kind: kind.clock for kind in (statements.PostgresStatements, statements.MySQLStatements)}
        self._sqlite_now = sqlite.SqliteStatements.now

    def client(self) -> LeaseTableBackend:
        client = LeaseTableBackend(self.alias, {"database": self.database})
        self._clients.append(client)
        return client

    def claim(self, name: str = "name", ttl: float = TTL) -> Claim:
        return Claim(key=derive_key("site", self.alias, name), ttl=ttl, token=secrets.token_hex(16))

    def shift(self, seconds: float) -> None:
        """Set the clock of the database forward, or back."""
        self.offset += seconds
        offset = int(self.offset * 1_000_000)
        self._monkeypatch.setattr(sqlite.SqliteStatements, "now", lambda of: self._sqlite_now(of) + offset)
        for kind, clock in self._clock.items():
            self._monkeypatch.setattr(kind, "clock", f"({clock} + {offset})")
        for client in self._clients:
            client.store.statements._texts.clear()

    def waits(self, client: LeaseTableBackend, claim: Claim) -> Future[Grant | None]:
        """Have ``client`` wait for the lease in a thread, and return once it has a ticket."""
        tickets = self.tickets(claim.key.name)
        waiting = self._pool.submit(client.try_acquire, claim, WAIT)
        eventually(lambda: self.tickets(claim.key.name) > tickets or waiting.done(), "it draws no ticket")
        return waiting

    def kept(self) -> int:
        """How many leases of this alias are in the table, ended ones too."""
        return self._count("django_distlock_lease WHERE alias = {}", self.alias)

    def tickets(self, name: str = "name") -> int:
        """How many tickets there are for one name."""
        return self._count("django_distlock_ticket WHERE digest = {}", self.claim(name).key.path)

    def _count(self, rows: str, parameter: str) -> int:
        sql = f"SELECT count(*) FROM {rows}"
        if self.store not in SQLITE:
            return int(ask(self.database, sql.format("%s"), parameter)[0][0])

        def in_file(file: sqlite.LeaseFile) -> int:
            return int(file.cursor.execute(sql.format("?"), (parameter,)).fetchone()[0])

        return int(self._clients[0].store.run(0.0, in_file))

    def close(self) -> None:
        self._pool.shutdown()
        for client in self._clients:
            client.close()
        if self.store not in SQLITE:
            ask(self.database, "DELETE FROM django_distlock_lease WHERE alias = %s", self.alias)


@pytest.fixture(params=["file", *SERVERS])
def stores(request: pytest.FixtureRequest, databases: None, monkeypatch: Any, tmp_path: Path) -> Iterator[Stores]:
    give_time(monkeypatch.setattr)
    made = Stores(request.param, monkeypatch, tmp_path)
    yield made
    made.close()


@pytest.fixture
def a(stores: Stores) -> Any:
    return stores.client()


@pytest.fixture
def b(stores: Stores) -> Any:
    return stores.client()
