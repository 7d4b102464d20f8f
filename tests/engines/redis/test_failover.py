"""What docs/backends/redis.md says of a fail-over."""

from __future__ import annotations

import itertools
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends.redis import doctor
from django_distlock.backends.redis.backend import RedisBackend
from tests.conftest import eventually
from tests.docs.pages import blocks
from tests.engines.redis.server import Own, claim_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"


@pytest.fixture
def replica(own: Own, tmp_path: Path) -> Iterator[Own]:
    """Of the server of the test, and in step with it."""
    (tmp_path / "replica").mkdir()
    with Own(tmp_path / "replica") as replica:
        replica.follow(own)
        yield replica


def of_the_page() -> Any:
    """The function that waits for the end of a fail-over."""
    (block,) = (each for each in blocks("docs/usage/waiting.md") if "acquire_when_back" in each.code)
    names: dict[str, Any] = {}
    exec(block.code.partition("\n\n\nwith ")[0], names)  # noqa: S102
    return names["acquire_when_back"]


@pytest.mark.tier2
def test_r6_a_failover_is_an_error_and_can_be_waited_for(own: Own, name: str) -> None:
    lock = advisory_lock(name, using=USING)
    lock.acquire().release()
    own.stop()
    with pytest.raises(BackendUnavailable):
        lock.acquire(timeout=20)
    starter = threading.Timer(0.3, own.start)
    starter.start()
    of_the_page()(lock).release()
    starter.join()


@pytest.mark.tier2
def test_an_old_primary_that_wakes_grants_nothing_without_replicas(own: Own, replica: Own, name: str) -> None:
    """With min-replicas-to-write. It hung, its replica was promoted, and clients are connected to both."""
    old = RedisBackend("old", {"url": own.url})
    grant = old.try_acquire(claim_of(name))
    assert grant is not None
    assert old.release(grant)
    own.client.config_set("min-replicas-to-write", 1)
    own.client.config_set("min-replicas-max-lag", 1)
    own.signal(signal.SIGSTOP)
    replica.client.replicaof("NO", "ONE")
    grant = replica.holder.try_acquire(claim_of(name))
    assert grant is not None
    own.signal(signal.SIGCONT)
    numbers = itertools.count()

    def refused() -> bool:
        try:
            old.try_acquire(claim_of(f"{name}{next(numbers)}"))
        except BackendUnavailable as error:
            return "NOREPLICAS" in str(error)
        return False

    eventually(refused, "it goes on granting locks")
    assert replica.holder.release(grant)
    old.close()
    own.client.config_set("min-replicas-to-write", 0)


def test_the_doctor_asks_for_min_replicas(own: Own, replica: Own) -> None:
    def report() -> str:
        return " ".join(finding.text for finding in doctor.findings(own.holder.target))

    assert "is replicated" in report()
    assert "min-replicas-to-write is 0" in report()
    own.client.config_set("min-replicas-to-write", 1)
    assert "is replicated" in report()
    assert "min-replicas-to-write" not in report()
