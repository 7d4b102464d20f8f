"""A leader that loses its engine steps down before another one can lead, and stands again when the engine is back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import Leader, advisory_lock
from django_distlock.concurrency import clock
from django_distlock.manager.registry import registry
from tests.conftest import PATIENCE, eventually
from tests.contract.watching import asking_here, waiting_at_the_engine
from tests.engines.zookeeper.server import SESSION, USING, address, behind
from tests.faults.conftest import proxied
from tests.faults.proxy import Proxy
from tests.faults.server import SESSION_LOCKS, end_session, holders
from tests.support.processes import Child

if TYPE_CHECKING:
    from django_distlock.locks.leader import Term
    from tests.faults.conftest import Proxied
    from tests.support.child import Link

__all__ = ["proxied"]
pytestmark = pytest.mark.usefixtures("databases")
SHORT, MARGIN = 1.2, 0.5


class Office:
    """Who stands, and what was told about the end of a term."""

    def __init__(self, name: str, using: str, **more: float) -> None:
        self.demoted = threading.Event()
        self.elections = 0
        self.at = 0.0  # when on_demoted was called
        self.left: float | None = None  # for how many seconds nobody else could lead then
        self.reason: str | None = None
        self.leader = Leader(name, using=using, on_elected=self._elected, on_demoted=self._demoted, **more)

    def _elected(self, term: Term) -> None:
        self.elections += 1

    def leads_again(self) -> None:
        eventually(lambda: self.leader.leading, "it does not lead again")

    def _demoted(self, term: Term) -> None:
        self.at = clock.now()
        until = term._lease.valid_until
        self.left = None if until is None else until - self.at
        self.reason = term.reason
        self.demoted.set()


@pytest.mark.parametrize("using", SESSION_LOCKS)
def test_r17_a_session_that_is_ended_demotes_its_leader(using: str, name: str) -> None:
    office = Office(name, using)
    with office.leader as leader:
        assert leader.elected(PATIENCE)
        (session,) = holders(using, name)
        end_session(using, session)
        assert office.demoted.wait(PATIENCE)
        assert office.reason == "lost"
        office.leads_again()


@pytest.mark.cold
def test_r6_a_candidate_waits_for_its_engine(name: str, proxied: Proxied, caplog: pytest.LogCaptureFixture) -> None:
    """It asks again, with pauses that grow, and each time it is logged."""
    proxy = proxied("leasetable_postgres")
    proxy.on_request = lambda number: proxy.cut()
    with Leader(name, using="leasetable_postgres") as leader:
        eventually(lambda: caplog.text.count("The election for") >= 3, "it is silent")
        proxy.on_request = lambda number: None
        assert leader.elected(PATIENCE)


@pytest.mark.alone
def test_r18_who_cannot_renew_steps_down_before_another_one_can_lead(name: str, proxied: Proxied) -> None:
    proxy = proxied("leasetable_postgres")
    office = Office(name, "leasetable_postgres", ttl=SHORT, margin=MARGIN)
    with office.leader as leader:
        assert leader.elected(PATIENCE)
        proxy.blackhole()
        assert office.demoted.wait(PATIENCE)
        assert not leader.leading
        assert office.reason == "not renewed"
        assert office.left is not None
        assert 0 < office.left <= MARGIN
        proxy.heal()
        office.leads_again()
    assert office.elections == 2


@pytest.mark.alone
def test_r20_a_lease_that_is_renewed_keeps_its_leader(name: str) -> None:
    """The margin alone ends no term."""
    office = Office(name, "leasetable", ttl=SHORT)
    with office.leader as leader:
        term = leader.elected(PATIENCE)
        assert term is not None
        until = clock.now() + 1.25 * SHORT
        while clock.now() < until:
            assert term.wait(0.05)
    assert (office.elections, office.reason) == (1, "stopped")


@pytest.mark.alone
def test_r18_in_a_partition_it_steps_down_before_another_one_leads(name: str, settings: Any) -> None:
    with Proxy(*address()) as proxy:
        behind(settings, proxy)
        office = Office(name, USING)
        with office.leader as leader:
            assert leader.elected(PATIENCE)
            with Child(wait, name) as rival:
                eventually(lambda: waiting_at_the_engine(USING, name) == 1, "no waiter")
                proxy.blackhole()
                assert office.demoted.wait(PATIENCE)
                assert office.reason == "lost"
                assert rival.hear() > office.at
            proxy.heal()
            office.leads_again()
        assert office.elections == 2


def wait(link: Link, name: str) -> None:
    """For the lock of a leader; say when it came."""
    with advisory_lock(name, using=USING, timeout=PATIENCE):
        link.say(clock.now())


def lead(link: Link, using: str, name: str, ttl: float | None) -> None:
    """In a process of its own, until it is killed."""
    with Leader(name, using=using, **({} if ttl is None else {"ttl": ttl})) as leader:
        assert leader.elected(PATIENCE)
        link.say("leads")
        link.hear()


@pytest.mark.alone
@pytest.mark.parametrize("using", ["leasetable", "postgres", "redis", "redlock", "zookeeper"])
def test_r18_another_one_leads_within_a_second_of_the_end_of_the_lock(using: str, name: str) -> None:
    ttl = SHORT if registry.entry(using).backend.supports_ttl else None
    # for so long the lock of a dead leader lives on
    outlives = ttl or (0.0 if using in SESSION_LOCKS else SESSION)
    with Child(lead, using, name, ttl) as child:
        assert child.hear() == "leads"
        with Leader(name, using=using) as leader:
            eventually(lambda: asking_here(name), "it does not stand")
            assert not leader.leading
            child.kill()
            killed = clock.now()
            assert leader.elected(PATIENCE)
            assert clock.now() - killed < outlives + 1 + 1
