"""A leader that loses its engine steps down before another one can lead, and stands again when the engine is back."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import Leader, advisory_lock
from django_distlock.concurrency import clock
from django_distlock.manager.registry import registry
from tests.conftest import PATIENCE, eventually
from tests.contract.watching import asking_here, waiting_at_the_engine
from tests.engines.zookeeper.server import SESSION, USING, address, behind
from tests.faults.conftest import Proxied, proxied
from tests.faults.proxy import Proxy
from tests.faults.server import SESSION_LOCKS, end_session, holders
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from django_distlock.locks.leader import Term
    from tests.support.child import Link

__all__ = ["proxied"]
pytestmark = pytest.mark.usefixtures("databases")
SHORT, MARGIN = 1.2, 0.5


class Ends:
    """``on_demoted``: why each term ended, when, and for how many seconds nobody else could lead then."""

    def __init__(self) -> None:
        self._told: queue.Queue[Any] = queue.Queue()

    def __call__(self, term: Term) -> None:
        now, until = clock.now(), term._lease.valid_until
        self._told.put((term.reason, now, None if until is None else until - now))

    def next(self) -> Any:
        return self._told.get(timeout=PATIENCE)


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.mark.parametrize("using", SESSION_LOCKS)
def test_r17_a_session_that_is_ended_demotes_its_leader(using: str, name: str, ends: Ends) -> None:
    with Leader(name, using=using, on_demoted=ends) as leader:
        assert leader.elected(PATIENCE)
        (session,) = holders(using, name)
        end_session(using, session)
        assert ends.next()[0] == "lost"
        assert leader.elected(PATIENCE)


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
def test_r18_who_cannot_renew_steps_down_before_another_one_can_lead(name: str, proxied: Proxied, ends: Ends) -> None:
    proxy = proxied("leasetable_postgres")
    with Leader(name, using="leasetable_postgres", ttl=SHORT, margin=MARGIN, on_demoted=ends) as leader:
        assert leader.elected(PATIENCE)
        proxy.blackhole()
        reason, _, left = ends.next()
        assert not leader.leading
        assert reason == "not renewed"
        assert 0 < left <= MARGIN
        proxy.heal()
        assert leader.elected(PATIENCE)


@pytest.mark.alone
def test_r20_a_lease_that_is_renewed_keeps_its_leader(name: str, ends: Ends) -> None:
    """The margin alone ends no term."""
    with Leader(name, using="leasetable", ttl=SHORT, on_demoted=ends) as leader:
        term = leader.elected(PATIENCE)
        assert term is not None
        until = clock.now() + 1.25 * SHORT
        while clock.now() < until:
            assert term.wait(0.05)
    assert ends.next()[0] == "stopped"


@pytest.mark.tier2
def test_r18_in_a_partition_it_steps_down_before_another_one_leads(name: str, settings: Any, ends: Ends) -> None:
    with Proxy(*address()) as proxy:
        behind(settings, proxy)
        with Leader(name, using=USING, on_demoted=ends) as leader:
            assert leader.elected(PATIENCE)
            with Child(wait, name) as rival:
                eventually(lambda: waiting_at_the_engine(USING, name) == 1, "no waiter")
                proxy.blackhole()
                reason, at, _ = ends.next()
                assert reason == "lost"
                assert rival.hear() > at
            proxy.heal()
            assert leader.elected(PATIENCE)


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


@pytest.mark.tier2
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
            within(clock.now() - killed, outlives + 1 + 1)
