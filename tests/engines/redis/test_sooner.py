"""A waiter asks again now and then: the present lease may end sooner than the one that it saw when it joined."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.backends.redis import attempt
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.backends.redis.scripts import keys_of
from tests.conftest import eventually
from tests.engines.redis.server import claim_of, counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from django_distlock.records import Grant
    from tests.engines.redis.server import Own

pytestmark = pytest.mark.usefixtures("databases")
# A waiter that did not ask before would wait for the end of the long one. Seconds.
LONG, SHORT = 60.0, 0.5


class Queue:
    """Holders and waiters of one lock that never renew: each is as good as dead once it holds."""

    def __init__(self, own: Own, name: str, pool: ThreadPoolExecutor) -> None:
        self._own, self._name, self._pool = own, name, pool
        self.backend = RedisBackend("redis", {"url": own.url})
        self._length = 0

    def hold(self, ttl: float, **facts: Any) -> Grant:
        grant = self.backend.try_acquire(claim_of(self._name, ttl, **facts))
        assert grant is not None
        return grant

    def wait(self, ttl: float, **facts: Any) -> Future[Any]:
        """Join the queue."""
        claim = claim_of(self._name, ttl, **facts)
        waiting, self._length = self._pool.submit(self.backend.try_acquire, claim, 30), self._length + 1
        eventually(lambda: self._own.client.zcard(keys_of(claim.key.text_bytes)[1]) == self._length, "it does not wait")
        return waiting

    def release(self, grant: Grant) -> None:
        assert self.backend.release(grant)


@pytest.fixture
def line(own: Own, name: str) -> Iterator[Queue]:
    with ThreadPoolExecutor() as pool:
        line = Queue(own, name, pool)
        yield line
        line.backend.close()


def handed_on(line: Queue, **facts: Any) -> Future[Any]:
    """The next holder has a shorter TTL."""
    first = line.hold(LONG, **facts)
    dying, waiting = line.wait(SHORT, **facts), line.wait(LONG, **facts)
    line.release(first)
    assert dying.result(20)
    return waiting


def place_of_a_semaphore(line: Queue) -> Future[Any]:
    """One of two places goes to a holder with a shorter TTL."""
    line.hold(LONG, limit=2)
    return handed_on(line, limit=2)


def shortened(line: Queue) -> Future[Any]:
    """The holder asks for less time than it had."""
    first = line.hold(LONG)
    waiting = line.wait(LONG)
    assert line.backend.extend(first, SHORT)
    return waiting


def last_reader(line: Queue) -> Future[Any]:
    """The reader with the longest lease goes, another stays."""
    first = line.hold(LONG, shared=True)
    line.hold(SHORT, shared=True)
    waiting = line.wait(LONG)
    line.release(first)
    return waiting


@pytest.mark.parametrize("changed", [handed_on, shortened, last_reader, place_of_a_semaphore])
def test_a_shorter_lease_that_nobody_releases(
    own: Own, line: Queue, changed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "LOOK_EVERY", 1.0)
    with counted(own.client) as commands:
        grant = changed(line).result(40)
    assert grant is not None, "it sleeps until the end of the lease that it saw"
    # two holders and waiters at most, what each case does, twice for the first wait, and that the last one asks again
    assert commands["evalsha"] + commands["eval"] <= 14
    line.release(grant)
