"""MySQL and MariaDB: how long a wait in the engine's queue takes, whatever the server makes of the seconds."""

from __future__ import annotations

import threading
import time

import pytest

from django_distlock import advisory_lock
from django_distlock.backends.mysql import session
from django_distlock.backends.mysql.session import MySQLSession
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.actors import hold
from tests.faults.server import holders, waiters
from tests.support.processes import Child
from tests.support.timing import within

pytestmark = pytest.mark.usefixtures("databases")


def open_sessions(name: str) -> None:
    """To try on and to wait on, by a caller with time for it; somebody else holds the lock."""
    assert advisory_lock(name, using="mysql").try_acquire(timeout=2) is None


@pytest.mark.parametrize("timeout", [0.05, 0.3, 0.73])
def test_r5_fractions_of_a_second(name: str, timeout: float) -> None:
    with Child(hold, "mysql", name) as child:
        assert child.hear() == "held"
        open_sessions(name)
        for _ in range(3):
            began = time.monotonic()
            assert advisory_lock(name, using="mysql").try_acquire(timeout=timeout) is None
            within(time.monotonic() - began, timeout + 0.05, least=timeout)
        child.say()
        assert child.hear() == "released"


def test_r5_a_wait_that_the_server_does_not_end_keeps_the_deadline(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R5, R7: MySQL rounds to whole seconds, and may know no limit on a statement's time; the session is dropped at the
    deadline and gets no lock later."""
    with Child(hold, "mysql", name) as child:
        assert child.hear() == "held"
        open_sessions(name)
        monkeypatch.setattr(MySQLSession, "_waiting", lambda self, name, until: b"SELECT GET_LOCK('%s', 5)" % name)
        for _ in range(3):  # the second on a name that is known to be busy
            began = time.monotonic()
            assert advisory_lock(name, using="mysql").try_acquire(timeout=0.3) is None
            within(time.monotonic() - began, 0.35, least=0.3)
        child.say()
        assert child.hear() == "released"
        eventually(lambda: not waiters("mysql", name), "somebody still waits")
        eventually(lambda: not holders("mysql", name), "a wait that nobody waits for got the lock")


def test_a_wait_in_vain_costs_no_session(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MySQL too, whose GET_LOCK knows whole seconds only: connecting costs it more than a wait."""
    monkeypatch.setattr(session, "GRACE", 2.0)  # a server that is late for want of a processor costs one, by right
    backend = registry.entry("mysql").backend
    with Child(hold, "mysql", name) as child:
        assert child.hear() == "held"
        seen = []
        for timeout in (1.0, 0.3, 0.05, 0.73):
            began = time.monotonic()
            assert advisory_lock(name, using="mysql").try_acquire(timeout=timeout) is None
            within(time.monotonic() - began, timeout + 0.25, least=timeout)  # not the whole seconds
            seen.append({each.server_id for each in backend.sessions.all()})
        assert len(seen[0]) == 2, "one to try on, one to wait on"
        assert seen == [seen[0]] * 4
        child.say()
        assert child.hear() == "released"


@pytest.mark.parametrize("days", [25, 3660])
def test_r5_a_wait_longer_than_the_engine_can_count_is_a_wait(name: str, days: int) -> None:
    with Child(hold, "mysql", name) as child:
        assert child.hear() == "held"
        threading.Timer(0.2, child.say).start()
        with advisory_lock(name, using="mysql", timeout=days * 86400.0):
            assert len(holders("mysql", name)) == 1
        assert child.hear() == "released"
