"""A process is stopped between its last look at the lease and its write, beyond the TTL; another one writes; the first
wakes up and writes: never in."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, connections

from django_distlock import DistlockError, LockLost, advisory_lock
from django_distlock.data.fencing.triggers import reconcile
from tests.data.app.models import Register
from tests.data.world import everywhere, rows
from tests.faults.pausing import take_over, wake
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.child import Link

pytestmark = pytest.mark.tier2

AT_ONCE = 100
WAYS = ("update", "save")
STALE, FRESH = -1, 1
LEASES = {"default": "leasetable", "postgres": "leasetable_postgres", "mariadb": "leasetable_mariadb"}
TTL = 4.0  # seconds: a hundred threads must come as far as their statement within it


def holder(link: Link, using: str) -> None:
    """Take the leases, get as far as the statement, say so, and write at the word."""
    work = link.hear()
    opened, ready, outcomes = threading.Event(), threading.Semaphore(0), [{} for _ in work]

    def hold_up(execute: Any, *arguments: Any) -> Any:
        """The first statement of each thread."""
        if not opened.is_set():
            ready.release()
            assert opened.wait(60)
        return execute(*arguments)

    threads = [
        threading.Thread(target=write_late, args=(using, *one, hold_up, outcome))
        for one, outcome in zip(work, outcomes, strict=True)
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert ready.acquire(timeout=30)
    link.say("ready")
    link.hear()
    opened.set()
    for thread in threads:
        thread.join(60)
    link.say(outcomes)


def write_late(using: str, name: str, pks: dict[str, int], first: str, hold_up: Any, outcome: dict[str, str]) -> None:
    """The way ``first`` has the lease itself and is stopped after it has asked; the others have only its token."""
    ways = writes(using, pks)
    lease = advisory_lock(name, using=LEASES[using], ttl=TTL).acquire(timeout=30)
    token = lease.fence
    try:
        connections[using].ensure_connection()
        with connections[using].execute_wrapper(hold_up):
            outcome[first] = result(ways[first], lease)
            for way in {*ways} - {first}:
                outcome[way] = result(ways[way], token)
    finally:
        with contextlib.suppress(DistlockError):
            lease.release()
        connections[using].close()


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
@pytest.mark.usefixtures("_trigger")
def test_no_late_write(using: str, name: str) -> None:
    rows(using).bulk_create([Register(owner="ann") for _ in range(3 * AT_ONCE)])
    made = iter(rows(using).values_list("pk", flat=True))
    work = [
        (f"{name}-{index}", {way: next(made) for way in ("update", "save", "naive")}, WAYS[index % len(WAYS)])
        for index in range(AT_ONCE)
    ]
    with Child(holder, using) as child:
        child.say(work)
        assert child.hear() == "ready"
        leases = [take_over(child, advisory_lock(one, using=LEASES[using]), TTL + 1) for one, _, _ in work]
        for lease, (_, pks, _) in zip(leases, work, strict=True):
            assert rows(using).fenced(lease).filter(pk__in=pks.values()).update(balance=FRESH) == 3
        child.say("go")
        wake(child)
        found = Counter(pair for outcome in child.hear() for pair in outcome.items())
        for lease in leases:
            lease.release()
    expected = {(way, "refused"): AT_ONCE for way in WAYS}
    assert found == expected | {("naive", "accepted"): AT_ONCE}  # else nothing was shown
    balances: Any = Counter(rows(using).values_list("balance", flat=True))
    assert balances == {FRESH: 2 * AT_ONCE, STALE: AT_ONCE}
