"""A process stopped beyond its TTL between its last look at the lease and its write: the write is never in."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, connections

from django_distlock import DistlockError, LockLost, advisory_lock
from django_distlock.data.fencing.triggers import reconcile
from tests.data.app.models import Register
from tests.data.world import everywhere, register, rows, stored
from tests.faults.pausing import take_over, wake
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.child import Link

pytestmark = pytest.mark.tier2

STALE, FRESH = -1, 1
LEASES = {"default": "leasetable", "postgres": "leasetable_postgres", "mariadb": "leasetable_mariadb"}
TTL = 2.0  # seconds


def holder(link: Link, using: str, name: str, pks: dict[str, int], first: str) -> None:
    """Take the lease, write by the way ``first``, be stopped behind the look at the lease, and go on at the word. The
    other ways have no more than its token."""
    ways = writes(using, pks)
    lease = advisory_lock(name, using=LEASES[using], ttl=TTL).acquire(timeout=30)
    token = lease.fence
    said: list[str] = []

    def hold_up(execute: Any, *arguments: Any) -> Any:
        if not said:
            said.append("ready")
            link.say("ready")
            link.hear()
        return execute(*arguments)

    with connections[using].execute_wrapper(hold_up):
        outcome = {way: result(ways[way], lease if way == first else token) for way in sorted(ways, key=first.__ne__)}
    with contextlib.suppress(DistlockError):
        lease.release()
    link.say(outcome)


def writes(using: str, pks: dict[str, int]) -> dict[str, Callable[[Any], Any]]:
    """Each with a lease or a token."""
    instance = rows(using).get(pk=pks["save"])
    instance.balance = STALE
    return {
        "update": lambda fence: rows(using).fenced(fence).filter(pk=pks["update"]).update(balance=STALE),
        "save": lambda fence: instance.save(fence=fence),
        "naive": lambda fence: rows(using).filter(pk=pks["naive"]).update(balance=STALE),
    }


def result(write: Callable[[Any], Any], fence: Any) -> str:
    """Only what the database has refused counts as refused."""
    try:
        write(fence)
    except LockLost as error:
        return "refused" if "came too late" in str(error) else str(error)
    except (DistlockError, DatabaseError) as error:
        return str(error)
    return "accepted"


@pytest.fixture(params=[False, True], ids=["plain", "enforced"])
def _trigger(using: str, request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Register, "enforce_fence", request.param)
        reconcile(using, plan=[])
        yield
    reconcile(using, plan=[])


@everywhere
@pytest.mark.parametrize("first", ["update", "save"])
@pytest.mark.usefixtures("_trigger")
def test_no_late_write(using: str, name: str, first: str) -> None:
    made = {way: register(using) for way in ("update", "save", "naive")}
    pks = {way: row.pk for way, row in made.items()}
    with Child(holder, using, name, pks, first) as child:
        assert child.hear() == "ready"
        lease = take_over(child, advisory_lock(name, using=LEASES[using]), TTL + 1)
        assert rows(using).fenced(lease).filter(pk__in=pks.values()).update(balance=FRESH) == 3
        child.say("go")
        wake(child)
        outcome = child.hear()
        lease.release()
    assert outcome == {"update": "refused", "save": "refused", "naive": "accepted"}  # else nothing was shown
    assert {way: stored(row)[0] for way, row in made.items()} == {"update": FRESH, "save": FRESH, "naive": STALE}
