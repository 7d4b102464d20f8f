"""Statements that arrive at the server when they have been sent again and are over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_distlock import advisory_lock, held_locks
from tests.conftest import connect, eventually
from tests.faults.server import ask, key_of

if TYPE_CHECKING:
    from tests.faults.conftest import Proxied

pytestmark = pytest.mark.usefixtures("databases")
USING = {"leasetable_postgres": "postgres", "leasetable_mariadb": "mariadb"}
LONG = 600.0


def fence_of(using: str, name: str) -> int:
    return int(
        ask(USING[using], "SELECT fence FROM django_distlock_lease WHERE digest = %s", key_of(using, name).path)[0][0]
    )


@pytest.mark.parametrize("using", USING)
def test_r7_an_acquire_that_arrives_after_its_repetition_was_released(using: str, name: str, proxied: Proxied) -> None:
    """Nobody has that lease. It is given back long before its TTL is over."""
    proxy = proxied(using)
    for _ in range(3):  # the driver of PostgreSQL prepares a statement that it executes repeatedly
        connect(using)
    proxy.detain(1)
    advisory_lock(name, using=using, ttl=LONG).acquire(timeout=20).release()
    before = fence_of(using, name)
    proxy.deliver()
    eventually(lambda: fence_of(using, name) > before, "it does not arrive")
    eventually(lambda: not [info for info in held_locks(using)[0].locks if info.name == name], "nobody has it")
