"""A leader that loses its engine steps down before another one can lead, and stands again when the engine is back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from django_distlock import Leader
from django_distlock.concurrency.clock import now as monotonic
from tests.conftest import eventually
from tests.faults.server import SESSION_LOCKS, end_session, holders

if TYPE_CHECKING:
    from django_distlock.locks.leader import Term
    from tests.faults.conftest import Proxied

PATIENCE = 10.0
TTL, MARGIN = 1.2, 0.5
pytestmark = pytest.mark.usefixtures("databases")


class Office:
    """Who stands, and what was told about the end of a term."""

    def __init__(self, name: str, using: str, **more: float) -> None:
        self.demoted = threading.Event()
        self.elections = 0
        self.left: float | None = None  # seconds for which nobody else could lead when on_demoted was called
        self.reason: str | None = None
        self.leader = Leader(name, using=using, on_elected=self._elected, on_demoted=self._demoted, **more)

    def _elected(self, term: Term) -> None:
        self.elections += 1

    def _demoted(self, term: Term) -> None:
        until = term._lease.valid_until
        self.left = None if until is None else until - monotonic()
        self.reason = term.reason
        self.demoted.set()


@pytest.mark.alone
@pytest.mark.parametrize("using", ["leasetable_postgres", "leasetable_mariadb"])
def test_who_cannot_renew_steps_down_before_another_one_can_lead(using: str, name: str, proxied: Proxied) -> None:
    proxy = proxied(using)
    office = Office(name, using, ttl=TTL, margin=MARGIN)
    with office.leader as leader:
        assert leader.elected(PATIENCE)
        proxy.blackhole()
        assert office.demoted.wait(PATIENCE)
        assert not leader.leading
        assert office.reason == "not renewed"
        assert office.left is not None
        assert 0 < office.left <= MARGIN
        proxy.heal()
        eventually(lambda: leader.leading, "it does not lead again")
    assert office.elections == 2


def test_a_lease_that_is_renewed_keeps_its_leader(name: str) -> None:
    """The margin alone ends no term."""
    office = Office(name, "leasetable", ttl=TTL)
    with office.leader as leader:
        term = leader.elected(PATIENCE)
        assert term is not None
        until = monotonic() + 1.25 * TTL
        while monotonic() < until:
            assert term.wait(0.05)
    assert (office.elections, office.reason) == (1, "stopped")


@pytest.mark.parametrize("using", SESSION_LOCKS)
def test_a_session_that_is_ended_demotes_its_leader(using: str, name: str) -> None:
    office = Office(name, using)
    with office.leader as leader:
        assert leader.elected(PATIENCE)
        (session,) = holders(using, name)
        end_session(using, session)
        assert office.demoted.wait(7)
        assert office.reason == "lost"
        eventually(lambda: leader.leading, "it does not lead again")


def test_a_candidate_waits_for_its_engine(name: str, proxied: Proxied, caplog: pytest.LogCaptureFixture) -> None:
    """It asks again, with pauses that grow, and each time it is logged."""
    proxy = proxied("leasetable_postgres")
    proxy.on_request = lambda number: proxy.cut()
    with Leader(name, using="leasetable_postgres") as leader:
        eventually(lambda: caplog.text.count("The election for") >= 3, "it is silent")
        proxy.on_request = lambda number: None
        assert leader.elected(PATIENCE)
