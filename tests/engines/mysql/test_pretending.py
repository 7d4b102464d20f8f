"""R22b: a server that grants one named lock to every session is refused, by its name. The real server is behind a proxy
that changes the statements, as a server that has GET_LOCK for show would answer them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections

from django_distlock import UnsupportedOperation, advisory_lock, table_lock
from django_distlock.manager.registry import registry
from django_distlock.operations.doctor import diagnose
from tests.data.app.models import Account
from tests.engines.own_servers import Galera, needs_programs, running
from tests.faults.conftest import database_alias
from tests.faults.proxy import Proxy
from tests.faults.server import ask, is_mariadb

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("databases")

# As long as the original, so that the packet's length stays true. INTERVAL('x', 0) is 1: no name here begins with a
# number, and 0 is not less than 0.
GET_LOCK, GRANTS = b"GET_LOCK('", b"INTERVAL('"


@contextmanager
def behind(settings: Any, port: int, **changes: Any) -> Iterator[Proxy]:
    """The lock alias "mysql", and the database alias "pretending", by a proxy in front of that port."""
    with (
        Proxy("127.0.0.1", port) as proxy,
        database_alias("pretending", "mariadb", HOST="127.0.0.1", PORT=str(proxy.port), **changes) as database,
    ):
        options = {"database": "mariadb", "session_database": database}
        settings.DISTLOCK = {**settings.DISTLOCK, "mysql": {**settings.DISTLOCK["mysql"], "OPTIONS": options}}
        registry.reset()
        yield proxy
        registry.reset()


@pytest.fixture
def proxied(settings: Any) -> Iterator[Proxy]:
    with behind(settings, int(connections.settings["mariadb"]["PORT"])) as proxy:
        yield proxy


def test_r22b_named_locks_that_exclude_nobody(proxied: Proxy, name: str) -> None:
    proxied.rewrite(GET_LOCK, GRANTS)
    version = ask("mariadb", "SELECT VERSION()")[0][0]
    lock = advisory_lock(name, using="mysql")
    for attempt in (lock.acquire, lock.try_acquire, async_to_sync(lock.aacquire)):
        with pytest.raises(UnsupportedOperation, match="two sessions") as caught:
            attempt()
        assert version in str(caught.value)
        assert "'mysql'" in str(caught.value)
    errors = [finding.text for finding in diagnose("mysql") if finding.level == "error"]
    assert any("two sessions" in error for error in errors)


@pytest.mark.tier2
@needs_programs
def test_a_percona_xtradb_cluster_and_its_table_locks(settings: Any, name: str) -> None:
    """It reports wsrep_on as a MariaDB with Galera does, and says that it is a MySQL."""
    if not is_mariadb():
        pytest.skip("a node of Galera is a MariaDB")
    user = connections.settings["mariadb"]["USER"]
    with running(Galera, "mariadb") as port, behind(settings, port, NAME=user) as proxy:
        with pytest.raises(UnsupportedOperation, match="is a Galera node"):
            table_lock(Account, using="pretending").__enter__()
        proxy.rewrite(b"MariaDB", b"Percona")
        proxy.rewrite(b"max_execution_time", b"max_statement_time")
        with pytest.raises(UnsupportedOperation, match=r"Galera node.*LeaseTableBackend"):
            advisory_lock(name, using="mysql").acquire()


@pytest.mark.parametrize("greeting", [b"-Vitess", b"TiDB-v7"])
def test_servers_without_lock_tables(proxied: Proxy, greeting: bytes) -> None:
    """They take the statement and do nothing."""
    if not is_mariadb():
        pytest.skip("what is rewritten is the name of MariaDB")
    proxied.rewrite(b"MariaDB", greeting)
    with pytest.raises(UnsupportedOperation, match=f"{greeting.decode()}.*does nothing on LOCK TABLES"):
        table_lock(Account, using="pretending").__enter__()
