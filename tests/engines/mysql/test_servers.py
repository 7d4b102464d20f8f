"""R22b: servers on which GET_LOCK would silently lock nothing are refused, each with the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import MySQLdb
import pytest
from asgiref.sync import async_to_sync
from django.db import connections

from django_distlock import UnsupportedOperation, advisory_lock, table_lock
from django_distlock.backends.mysql.session import MySQLSession
from django_distlock.backends.mysql.session import prepare as prepare_session
from django_distlock.backends.sessions.session import ServerError
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.concurrency.flow import run
from django_distlock.manager.registry import registry
from django_distlock.operations.doctor import diagnose
from tests.data.app.models import Account
from tests.faults.server import ask, is_mariadb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.conftest import Proxied
    from tests.faults.proxy import Proxy


pytestmark = pytest.mark.usefixtures("databases")


@pytest.fixture
def conn(databases: None) -> Iterator[Any]:
    """A connection of the driver to the real server, which a test may let lie about one thing."""
    conn = MySQLdb.connect(**connections["mariadb"].get_connection_params())
    yield conn
    conn.close()


def prepare(conn: Any) -> MySQLSession:
    session = MySQLSession(conn, waits=False)
    run(prepare_session(session, "mysql", monotonic() + 5))
    return session


MARIADB = ("10.0.2-MariaDB", "10.11.14-MariaDB-0+deb12u2", "11.4.3-MariaDB-ubu2404-log")
# what MySQL's own client library reports of MariaDB before 11
BY_MYSQL = ("5.5.5-10.11.14-MariaDB-0+deb12u2", "5.5.5-10.0.2-MariaDB")
MYSQL = ("5.7.5-m15-log", "5.7.44-azure-log", "8.0.36-0ubuntu0.22.04.1", "9.0.1", "8.0.mysql_aurora.3.04.0")
TOO_OLD = ("5.5.62", "5.6.51-log", "5.7.4-m14", "10.0.1-MariaDB", "5.5.5-10.0.1-MariaDB-mariadb1", "5.5.64-MariaDB")


def test_versions_that_work_and_those_on_which_a_second_lock_frees_the_first(conn: Any) -> None:
    """As far as a version goes: the next statement is the server's own, which the other one does not know."""
    for version in (*MARIADB, *BY_MYSQL, *MYSQL):
        conn.get_server_info = lambda version=version: version
        if is_mariadb() == ("MariaDB" in version):
            assert prepare(conn).mariadb == is_mariadb()
        else:
            with pytest.raises(ServerError, match=r"max_(statement|execution)_time"):
                prepare(conn)
    for version in TOO_OLD:
        conn.get_server_info = lambda version=version: version
        with pytest.raises(UnsupportedOperation, match=r"alias 'mysql' .* second GET_LOCK frees the first.*LeaseTable"):
            prepare(conn)


def test_a_proxy_that_shares_sessions(conn: Any) -> None:
    """The id of the greeting is the proxy's, CONNECTION_ID() the server's."""
    conn.thread_id = lambda: 1
    with pytest.raises(UnsupportedOperation, match=r"proxy.*session_database"):
        prepare(conn)


# As long as the original, so that the packet's length stays true. INTERVAL('x', 0) is 1: no name here begins with a
# number, and 0 is not less than 0.
GET_LOCK, GRANTS = b"GET_LOCK('", b"INTERVAL('"


@pytest.fixture
def proxy(proxied: Proxied) -> Iterator[Proxy]:
    registry.reset()
    yield proxied("mysql")
    registry.reset()


def test_r22b_named_locks_that_exclude_nobody(proxy: Proxy, name: str) -> None:
    proxy.rewrite(GET_LOCK, GRANTS)
    version = ask("mariadb", "SELECT VERSION()")[0][0]
    lock = advisory_lock(name, using="mysql")
    for attempt in (lock.acquire, lock.try_acquire, async_to_sync(lock.aacquire)):
        with pytest.raises(UnsupportedOperation, match="two sessions") as caught:
            attempt()
        assert version in str(caught.value)
        assert "'mysql'" in str(caught.value)
    errors = [finding.text for finding in diagnose("mysql") if finding.level == "error"]
    assert any("two sessions" in error for error in errors)


@pytest.mark.parametrize("greeting", [b"-Vitess", b"TiDB-v7"])
def test_servers_without_lock_tables(proxy: Proxy, greeting: bytes) -> None:
    """They take the statement and do nothing."""
    if not is_mariadb():
        pytest.skip("what is rewritten is the name of MariaDB")
    proxy.rewrite(b"MariaDB", greeting)
    with pytest.raises(UnsupportedOperation, match=f"{greeting.decode()}.*does nothing on LOCK TABLES"):
        table_lock(Account, using="mariadb_proxied").__enter__()
