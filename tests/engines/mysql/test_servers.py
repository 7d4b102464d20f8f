"""R22b: servers on which GET_LOCK would silently lock nothing are refused, each with the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync

from django_distlock import UnsupportedOperation, advisory_lock, table_lock
from django_distlock.backends.mysql.session import MySQLSession
from django_distlock.manager.registry import registry
from django_distlock.operations.doctor import diagnose
from tests.data.app.models import Account
from tests.faults.server import is_mariadb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.conftest import Proxied
    from tests.faults.proxy import Proxy


pytestmark = pytest.mark.usefixtures("databases")


# As long as the original, so that the packet's length stays true. INTERVAL('x', 0) is 1: no name here begins with a
# number, and 0 is not less than 0.
GET_LOCK, GRANTS = b"GET_LOCK('", b"INTERVAL('"


@pytest.fixture
def proxy(proxied: Proxied) -> Iterator[Proxy]:
    registry.reset()
    yield proxied("mysql")
    registry.reset()


def test_r22b_the_doctor_asks_with_two_sessions(proxy: Proxy) -> None:
    """A server that nobody knows, and that grants the lock to everybody."""

    def errors() -> list[str]:
        return [finding.text for finding in diagnose("mysql") if finding.level == "error"]

    assert not errors()
    registry.close()
    proxy.rewrite(GET_LOCK, GRANTS)
    assert any("grants one lock to two sessions" in error for error in errors())


@pytest.mark.parametrize(
    ("statement", "answer", "reason"),
    [
        ("SELECT CONNECTION_ID(), VERSION()", [(1, "8.0.36")], r"proxy.*session_database"),
        ("SELECT CONNECTION_ID(), VERSION()", [(None, b"8.0.11-TiDB-v7.5.0")], "TiDB.*LeaseTableBackend"),
        ("SELECT CONNECTION_ID(), VERSION()", [(None, "8.0.30-Vitess")], "Vitess.*LeaseTableBackend"),
        ("SHOW VARIABLES LIKE 'wsrep_on'", [("wsrep_on", "ON")], "Galera.*LeaseTableBackend"),
    ],
    ids=["proxy", "TiDB", "Vitess", "Galera"],
)
def test_r22b_servers_that_are_known_not_to_exclude(
    databases: None, statement: str, answer: Any, reason: str, name: str, monkeypatch: Any
) -> None:
    """Each time, sync and async, and nothing is kept."""
    rows = MySQLSession.rows

    def lie(session: MySQLSession, sql: bytes) -> Any:
        if sql != statement.encode():
            return rows(session, sql)
        return [tuple(session.server_id if value is None else value for value in answer[0])]

    monkeypatch.setattr(MySQLSession, "rows", lie)
    registry.reset()
    lock = advisory_lock(name, using="mysql")
    for attempt in (lock.acquire, lock.try_acquire, async_to_sync(lock.aacquire)):
        with pytest.raises(UnsupportedOperation, match=reason) as caught:
            attempt()
        assert "'mysql'" in str(caught.value)
    assert not registry.entry("mysql").backend.sessions.all()


@pytest.mark.parametrize("greeting", [b"-Vitess", b"TiDB-v7"])
def test_servers_without_lock_tables(proxy: Proxy, greeting: bytes) -> None:
    """They take the statement and do nothing."""
    if not is_mariadb():
        pytest.skip("what is rewritten is the name of MariaDB")
    proxy.rewrite(b"MariaDB", greeting)
    with pytest.raises(UnsupportedOperation, match=f"{greeting.decode()}.*does nothing on LOCK TABLES"):
        table_lock(Account, using="mariadb_proxied").__enter__()
