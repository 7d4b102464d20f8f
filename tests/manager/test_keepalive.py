"""R20: one error does not end the thread that keeps every lock of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_distlock import LockLost, advisory_lock
from django_distlock.manager import interrupted
from django_distlock.manager.registry import registry
from django_distlock.manager.release import lose
from tests.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock import Lease
    from django_distlock.records import Grant

pytestmark = pytest.mark.usefixtures("databases")
TTL = 2.0


def fails(*_: object) -> None:
    raise RuntimeError("broken")


def failing(function: Callable[..., object], times: int) -> Callable[..., object]:
    """The function, which fails that often before it works."""
    left = [fails] * times
    return lambda *args: (left.pop() if left else function)(*args)


def renewed(lease: Lease) -> None:
    first = lease.valid_until
    eventually(lambda: lease.valid_until != first, "the lease is not renewed")
    lease.ensure_held()


def test_r20_an_engine_that_cannot_be_looked_after_costs_the_others_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry.entry("memory").backend, "tick", fails)
    with advisory_lock(name, using="redis", ttl=TTL) as lease:
        renewed(lease)
    assert "could not be looked after" in caplog.text


def test_r20_the_thread_goes_on_after_an_error(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with advisory_lock(name, using="redis", ttl=TTL) as lease:
        monkeypatch.setattr(interrupted, "look", failing(interrupted.look, 1))
        renewed(lease)
    assert "met an error and goes on" in caplog.text


@pytest.mark.parametrize("using", ["redis", "leasetable", "memory"])
def test_r20_what_is_extended_while_it_is_lost_is_given_back(
    using: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would get the lock until the end of the longer lease."""
    lease = advisory_lock(name, using=using, ttl=TTL).acquire()
    backend = registry.entry(using).backend
    extend = backend.extend

    def extend_late(grant: Grant, ttl: float) -> Grant | None:
        longer = extend(grant, ttl)
        assert lose(lease._hold, "expired")
        return longer

    monkeypatch.setattr(backend, "extend", extend_late)
    with pytest.raises(LockLost):
        lease.extend(60)
    with advisory_lock(name, using=using, timeout=5):
        pass
