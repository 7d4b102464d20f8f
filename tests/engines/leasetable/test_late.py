"""Statements that arrive at the server when they have been sent again and are over."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from django_distlock import advisory_lock, held_locks
from django_distlock.concurrency import clock
from tests.conftest import connect, eventually
from tests.engines.actors import held_elsewhere
from tests.faults.server import ask, key_of

if TYPE_CHECKING:
    from tests.faults.conftest import Proxied
    from tests.faults.proxy import Proxy

pytestmark = pytest.mark.usefixtures("databases")
USING = {"leasetable_postgres": "postgres", "leasetable_mariadb": "mariadb"}
LONG = 600.0


def row_of(using: str, name: str) -> tuple[int, int]:
    """The fence and the end of a lease, in microseconds of the server's clock."""
    sql = "SELECT fence, expires_at FROM django_distlock_lease WHERE digest = %s"
    fence, expires_at = ask(USING[using], sql, key_of(using, name).path)[0]
    return int(fence), int(expires_at)


def behind(using: str, proxied: Proxied) -> Proxy:
    """The driver of PostgreSQL prepares a statement that it executes repeatedly."""
    proxy = proxied(using)
    for _ in range(3):
        connect(using)
    return proxy


@pytest.mark.parametrize("over", ["released", "refused"])
@pytest.mark.parametrize("using", USING)
def test_r7_an_acquire_that_arrives_after_its_repetition(using: str, over: str, name: str, proxied: Proxied) -> None:
    """Nobody has that lease. It is given back long before its TTL is over."""
    lock = advisory_lock(name, using=using, ttl=LONG)
    with held_elsewhere(using, name) if over == "refused" else nullcontext():
        proxy = behind(using, proxied)
        proxy.detain(1)
        lease = lock.try_acquire(timeout=2 if over == "refused" else 20)
        assert (lease is None) == (over == "refused")
    if lease is not None:
        lease.release()
    before = row_of(using, name)
    proxy.deliver()
    eventually(lambda: row_of(using, name) > before, "it does not arrive")
    eventually(lambda: not [info for info in held_locks(using)[0].locks if info.name == name], "nobody has it")


@pytest.mark.tier2
@pytest.mark.parametrize("late", ["acquire", "renewal"])
@pytest.mark.parametrize("using", USING)
def test_r19_a_request_that_arrives_late_ends_no_lease_unnoticed(
    using: str, late: str, name: str, proxied: Proxied
) -> None:
    """It sets its own TTL, which is shorter than what the holder has asked for since."""
    proxy = behind(using, proxied)
    if late == "acquire":
        proxy.detain(1)
    with advisory_lock(name, using=using, ttl=LONG, timeout=20) as lease:
        if late == "renewal":
            for _ in range(3):
                lease.extend(LONG)
            proxy.detain(1)
            lease.extend(LONG)
        lease.extend(10 * LONG)
        before = row_of(using, name)
        proxy.deliver()
        assert lease.valid_until < clock.now() + LONG
        eventually(lambda: row_of(using, name) != before, "it does not arrive")
        eventually(lambda: (lease.valid_until or 0.0) > clock.now() + 5 * LONG, "it is not renewed")
        assert row_of(using, name)[1] > before[1]
