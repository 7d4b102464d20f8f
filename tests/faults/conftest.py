"""Faults need a server that may be hurt: a proxy in front of the private one, or a server of the test's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.db import connections

from django_distlock.signals import lock_lost
from tests.conftest import PATIENCE, eventually
from tests.faults.proxy import Proxy
from tests.support import services

SERVERS = {"redis": "redis1", "zookeeper": "zookeeper"}  # lock alias -> server
BACKENDS = {
    "postgres": "django_distlock.backends.postgres.AdvisoryBackend",
    "mysql": "django_distlock.backends.mysql.NamedLockBackend",
    "leasetable_postgres": "django_distlock.backends.leasetable.LeaseTableBackend",
    "leasetable_mariadb": "django_distlock.backends.leasetable.LeaseTableBackend",
}


@contextmanager
def database_alias(alias: str, original: str, **changes: Any) -> Iterator[str]:
    """One more entry of DATABASES: the parameters of ``original`` with some of them changed."""
    connections.settings[alias] = {**connections.settings[original], **changes}
    try:
        yield alias
    finally:
        if hasattr(connections._connections, alias):  # type: ignore[attr-defined]
            connections[alias].close()
            del connections[alias]
        del connections.settings[alias]


class Ears:
    """Every way of being told of a loss."""

    def __init__(self, lease: Any) -> None:
        self.name = lease.name
        self.callback = threading.Event()
        self.facts: dict[str, Any] = {}
        lease.on_lost(lambda lost: self.callback.set())
        lock_lost.connect(self._hear)

    def _hear(self, **facts: Any) -> None:
        if facts["name"] == self.name:
            self.facts = facts

    def told(self, since: float = 0) -> float:
        """Seconds until both the callback and the signal had come."""
        assert self.callback.wait(PATIENCE), "on_lost was not called"
        eventually(lambda: self.facts, "no lock_lost")
        return time.monotonic() - since


Proxied = Callable[[str], Proxy]


@pytest.fixture
def proxied(databases: None, settings: Any) -> Iterator[Proxied]:
    """``proxied("postgres")`` puts a proxy between this process and the server of that lock alias."""
    with ExitStack() as stack:

        def put(using: str) -> Proxy:
            original = settings.DISTLOCK[using]
            if using in SERVERS:
                server = services.load()[SERVERS[using]]
                proxy = stack.enter_context(Proxy(server["host"], int(server["port"])))
                options = {**original["OPTIONS"], "hosts": f"127.0.0.1:{proxy.port}", "session_timeout": 10}
                if using == "redis":
                    options = {"url": f"redis://:{server['password']}@127.0.0.1:{proxy.port}/0"}
                settings.DISTLOCK = {**settings.DISTLOCK, using: {**original, "OPTIONS": options}}
                return proxy
            database = str(original["OPTIONS"]["database"])
            server = connections.settings[database]
            proxy = stack.enter_context(Proxy(server["HOST"], int(server["PORT"])))
            alias = stack.enter_context(database_alias(f"{database}_proxied", database, PORT=str(proxy.port)))
            options = {"database": database, "session_database": alias}
            if using.startswith("leasetable"):
                options = {"database": alias}
            settings.DISTLOCK = {**settings.DISTLOCK, using: {"BACKEND": BACKENDS[using], "OPTIONS": options}}
            return proxy

        yield put
        from django_distlock.manager.registry import registry

        registry.close()
