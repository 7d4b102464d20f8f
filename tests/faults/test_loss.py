"""R6, R17: a session that the server ended is told to all who hold a lock on it, and replaced for the next one."""

from __future__ import annotations

from typing import Any

import pytest

from django_distlock import LockLost, advisory_lock
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.actors import held_elsewhere, waiting
from tests.faults.conftest import Ears
from tests.faults.server import SESSION_LOCKS, end_session, holders, session_exists, session_of

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.parametrize("using", SESSION_LOCKS)]


def test_r17_all_locks_of_a_lost_session_are_lost(using: str, name: str) -> None:
    """Each holder is told, and the next lock connects anew, without an error."""
    leases = [advisory_lock(f"{name}{number}", using=using).acquire() for number in range(10)]
    heard = [Ears(lease) for lease in leases]
    gone = session_of(leases[0]).server_id
    end_session(using, gone)
    for ears, lease in zip(heard, leases, strict=True):
        ears.told()
        assert ears.facts["reason"] == "session"
        assert (lease.held, lease.lost) == (False, True)
        for ask in (lease.ensure_held, lease.release):
            with pytest.raises(LockLost, match="was lost"):
                ask()
    with advisory_lock(name, using=using) as second:
        assert session_of(second).server_id != gone
        assert holders(using, name) == [session_of(second).server_id]


def test_r17_a_lease_that_is_asked_looks_at_its_session(using: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when the keepalive thread has looked; nothing of the driver comes out."""
    monkeypatch.setattr(registry.entry(using).backend, "tick", lambda now: now + 1)
    for attempt in range(5):
        lease = advisory_lock(f"{name}{attempt}", using=using).acquire()
        end_session(using, session_of(lease).server_id)
        eventually(lambda lease=lease: lease.lost, "the lease does not look")
        with pytest.raises(LockLost):
            lease.release()


def test_r17_an_idle_wait_session_that_died_is_replaced(using: str, name: str) -> None:
    """R6: a wait is not failed by the state of a session that merely lay about."""
    waited: list[Any] = []
    for _ in range(2):
        with held_elsewhere(using, name) as let_go, waiting(using, name) as acquiring:
            let_go()
            lease = acquiring.result()
        waited.append(session_of(lease).server_id)
        lease.release()
        end_session(using, waited[-1])
        eventually(lambda: not session_exists(using, waited[-1]), "the session did not end")
    assert len(set(waited)) == 2
