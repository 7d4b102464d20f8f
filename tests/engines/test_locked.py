"""What locked() asks of a server, and what it says of one that does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.db import transaction

from django_distlock import BackendUnavailable, advisory_lock, alocked, locked
from tests.conftest import connect
from tests.engines.statements import counted
from tests.faults.server import SESSION_LOCKS

pytestmark = pytest.mark.usefixtures("databases")
LEASE_TABLES = ["leasetable_postgres", "leasetable_mariadb"]


@pytest.mark.parametrize("using", [*SESSION_LOCKS, *LEASE_TABLES, "redis"])
def test_one_request_for_any_number_of_names(using: str, name: str, proxied: Any) -> None:
    proxy = proxied(using)
    names = [f"{name} {number}" for number in range(5)]
    with advisory_lock(names[1], using=using), advisory_lock(names[3], using=using):
        locked(names, using=using)  # connects
        before = proxy.requests
        with counted("postgres" if using == "postgres" else "mysql") as statements:
            assert locked(names, using=using) == {names[1], names[3]}
        assert 1 <= proxy.requests - before <= 2  # a heartbeat
        asked = [text for text in statements if "IS_USED_LOCK" in text]
        assert len(asked) == (using == "mysql"), statements


@pytest.mark.parametrize("using", ["postgres", "leasetable_mariadb", "redis", "zookeeper"])
def test_r6_a_silent_server(using: str, name: str, proxied: Any) -> None:
    proxy = proxied(using)
    connect(using)
    assert locked([name], using=using) == set()
    proxy.blackhole()
    for ask in (lambda: locked([name], using=using), lambda: asyncio.run(alocked([name], using=using))):
        with pytest.raises(BackendUnavailable):
            ask()


def test_a_lock_of_a_transaction_is_held_until_its_end(name: str) -> None:
    lock: Any = advisory_lock(name, using="postgres")
    with transaction.atomic("postgres"):
        with lock:
            assert lock.locked()
        assert lock.locked()
    assert not lock.locked()
