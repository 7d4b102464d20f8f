"""``manage.py distlock doctor`` at real servers of the kinds that locks must not be taken on: copies, and members of a
cluster; and at one whose commits hang."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from django.db import connections

from django_distlock import UnsupportedOperation, advisory_lock
from django_distlock.backends.mysql import doctor
from django_distlock.manager.registry import registry
from tests.engines.own_servers import Galera, Standby, needs_programs, running
from tests.faults.conftest import database_alias
from tests.faults.server import ask
from tests.operations.test_doctor import said
from tests.operations.test_doctor_servers import LEASES, MYSQL, POSTGRES
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.usefixtures("databases"), needs_programs, pytest.mark.tier2]


@pytest.fixture
def standby(databases: None) -> Iterator[str]:
    """The database alias of a copy of the shared server, on which every commit waits for the disk and for others."""
    options = {"options": "-c synchronous_commit=on"}
    with (
        running(Standby, "postgres") as port,
        database_alias("standby", "postgres", PORT=str(port), OPTIONS=options) as alias,
    ):
        yield alias
        registry.close()


def test_a_standby(settings: Any, standby: str) -> None:
    """It grants advisory locks as its primary does, and knows nothing of the primary's."""
    ask("postgres", "SELECT pg_advisory_lock(1)")
    assert ask(standby, "SELECT pg_is_in_recovery(), pg_try_advisory_lock(1)") == [(True, True)]
    ask("postgres", "SELECT pg_advisory_unlock(1)")
    found = said(settings, POSTGRES, database=standby)
    (error,) = found["error"]
    assert "is a standby" in error
    assert "session_database" in error
    assert any("A lock was acquired" in text for text in found["info"])
    found = said(settings, POSTGRES, database="postgres", session_database=standby)
    assert "is a standby" in found["error"][0]
    (error,) = said(settings, LEASES, database=standby)["error"]
    assert "read-only transaction" in error


def test_a_standby_that_does_not_confirm(settings: Any, standby: str) -> None:
    """Each commit hangs then. Who only holds locks does not commit; a lease table does."""
    ask(standby, "SELECT pg_promote()")
    ask(standby, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    ask(standby, "SELECT pg_reload_conf()")
    assert not said(settings, POSTGRES, database=standby)["error"]
    began = time.monotonic()
    (error,) = said(settings, LEASES, database=standby)["error"]
    within(time.monotonic() - began, 5.0, what="the doctor where commits hang")
    assert "did not answer in time" in error
    # those that hang go on, and it is seen that it was for this
    ((hung,),) = ask(standby, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    assert hung
    ask(standby, "ALTER SYSTEM RESET synchronous_standby_names")
    ask(standby, "SELECT pg_reload_conf()")
    registry.close()
    assert not said(settings, LEASES, database=standby)["error"]


@pytest.fixture
def galera(databases: None) -> Iterator[str]:
    """The database alias of a node; its database has no tables."""
    with (
        running(Galera, "mariadb") as port,
        database_alias("galera", "mariadb", PORT=str(port), NAME=connections.settings["mariadb"]["USER"]) as alias,
    ):
        yield alias
        registry.close()


def test_galera(settings: Any, galera: str) -> None:
    """A node does not share GET_LOCK with its cluster, and so is refused by whoever asks; then the same server as a
    plain one, which is read-only and shows no named locks."""
    assert ask(galera, "SELECT @@wsrep_on, @@wsrep_cluster_address") == ((1, "gcomm://"),)
    (error,) = said(settings, MYSQL, database=galera)["error"]
    assert "No lock can be acquired" in error
    assert "Galera" in error
    with pytest.raises(UnsupportedOperation, match=r"Galera.*LeaseTable"):
        advisory_lock("x", using="sick").acquire()
    (message,) = (each for each in run_checks(tags=["database"], databases=[galera]) if each.id == "distlock.W006")
    assert "Galera" in message.msg

    ask(galera, "SET GLOBAL wsrep_on = OFF")
    ask(galera, "SET GLOBAL read_only = ON")
    registry.close()
    found = said(settings, MYSQL, database=galera)
    assert not found["error"]
    (replica, listing) = found["warning"]
    assert "read-only" in replica
    assert "INSTALL SONAME 'metadata_lock_info'" in listing
    # the statement for MySQL, which both know: performance_schema is off
    backend: Any = registry.entry("sick").backend
    assert not doctor.looks(doctor._asked(backend._ask, doctor.USER_LOCKS_MYSQL))
