"""Servers on which GET_LOCK would silently lock nothing are refused, each with the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import MySQLdb
import pytest
from django.db import connections

from django_distlock import UnsupportedOperation
from django_distlock.backends.mysql.session import MySQLSession
from django_distlock.backends.mysql.session import prepare as prepare_session
from django_distlock.backends.sessions.session import ServerError
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import run
from tests.faults.server import is_mariadb

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def assert_taken_for(conn: Any, version: str, *, mariadb: bool) -> None:
    conn.get_server_info = lambda: version
    if is_mariadb() == mariadb:
        assert prepare(conn).mariadb is mariadb
    else:
        with pytest.raises(ServerError, match="max_statement_time" if mariadb else "max_execution_time"):
            prepare(conn)


@pytest.mark.parametrize(
    "version",
    [
        "10.0.2-MariaDB",
        "10.11.14-MariaDB-0+deb12u2",
        "11.4.3-MariaDB-ubu2404-log",
        # what MySQL's own client library reports of MariaDB before 11
        "5.5.5-10.11.14-MariaDB-0+deb12u2",
        "5.5.5-10.6.16-MariaDB-cll-lve",
        "5.5.5-10.0.2-MariaDB",
    ],
)
def test_versions_of_mariadb_that_work(conn: Any, version: str) -> None:
    """As far as a version goes: the next statement is MariaDB's own, which MySQL does not know."""
    assert_taken_for(conn, version, mariadb=True)


@pytest.mark.parametrize(
    "version",
    [
        "5.7.5-m15-log",
        "5.7.44-azure-log",
        "8.0.36-0ubuntu0.22.04.1",
        "8.0.35-google",
        "8.4.0",
        "9.0.1",
        "8.0.mysql_aurora.3.04.0",
    ],
)
def test_versions_of_mysql_that_work(conn: Any, version: str) -> None:
    """As far as a version goes: the next statement is MySQL's own, which MariaDB does not know."""
    assert_taken_for(conn, version, mariadb=False)


@pytest.mark.parametrize(
    "version",
    ["5.5.62", "5.6.51-log", "5.7.4-m14", "10.0.1-MariaDB", "5.5.5-10.0.1-MariaDB-mariadb1", "5.5.64-MariaDB"],
)
def test_versions_on_which_a_second_lock_frees_the_first(conn: Any, version: str) -> None:
    conn.get_server_info = lambda: version
    with pytest.raises(UnsupportedOperation, match=r"alias 'mysql' .* second GET_LOCK frees the first.*LeaseTable"):
        prepare(conn)


def test_a_proxy_that_shares_sessions(conn: Any) -> None:
    """The id of the greeting is the proxy's, CONNECTION_ID() the server's."""
    conn.thread_id = lambda: 1
    with pytest.raises(UnsupportedOperation, match=r"proxy.*session_database"):
        prepare(conn)


def test_two_locks_on_one_session_are_two_locks(conn: Any) -> None:
    """What the refused versions cannot: the server of this test can."""
    conn.query("SELECT GET_LOCK('two-locks-a', 0) + GET_LOCK('two-locks-b', 0), IS_USED_LOCK('two-locks-a')")
    assert conn.store_result().fetch_row(0)[0] == (2, conn.thread_id())
