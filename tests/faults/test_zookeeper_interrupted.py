"""R7 on ZooKeeper: Ctrl-C at any place of an acquire or a release, in kazoo's code as well, leaves no node."""

from __future__ import annotations

from typing import Any

import kazoo.client
import kazoo.handlers.utils
import pytest

from django_distlock.backends.zookeeper import backend, handler, queue, session
from django_distlock.backends.zookeeper.backend import IDLE_TIMEOUT
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from django_distlock.records import Claim
from tests.conftest import eventually
from tests.engines.zookeeper.server import USING, clerk, nodes, stand_in, use
from tests.support.interrupts import interrupted_everywhere
from tests.support.timing import within

pytestmark = pytest.mark.usefixtures("databases")

MODULES = (backend, handler, queue, session, kazoo.client, kazoo.handlers.utils)


def test_r7_an_interrupt_leaves_no_node(name: str, settings: Any) -> None:
    """And no request that kazoo has queued without sending it, behind which all others would wait."""
    use(settings, session_timeout=30)  # its signs of life would hide such a request
    site_key.load()
    entry = registry.entry(USING)
    engine: Any = entry.backend
    claim, other = Claim(key=entry.key(name)), Claim(key=entry.key(f"{name}-after"))
    for each in (claim, other):  # what is done once is done here
        engine.release(engine.try_acquire(each))
    used = engine._session
    got: list[Any] = []

    def acquire_and_release() -> None:
        got.append(engine.try_acquire(claim, 5))
        engine.release(got[0])

    def clean() -> None:
        while got:
            engine.release(got.pop())  # again: the first one may have been interrupted before it began
        began = monotonic()
        engine.release(engine.try_acquire(other, 5))
        within(monotonic() - began, 1)
        eventually(lambda: nodes(server, name) == [], "a node stays behind", patience=IDLE_TIMEOUT - 1)
        assert not used.held

    with clerk() as server:
        assert interrupted_everywhere(acquire_and_release, clean, *MODULES) > 100
    assert engine._session is used
    eventually(lambda: used.idle, "something is left to be done")


def test_r7_an_interrupt_of_one_who_finds_it_busy_leaves_no_node(name: str, settings: Any) -> None:
    """Its node is deleted on the way back, and the deletion must be known to somebody at any moment."""
    use(settings, session_timeout=30)
    site_key.load()
    entry = registry.entry(USING)
    engine: Any = entry.backend
    claim, other = Claim(key=entry.key(name)), Claim(key=entry.key(f"{name}-after"))
    engine.release(engine.try_acquire(other))

    def clean() -> None:
        engine.release(engine.try_acquire(other, 5))
        eventually(lambda: len(nodes(server, name)) == 1, "a node stays behind", patience=IDLE_TIMEOUT - 1)

    with clerk() as server:
        stand_in(server, name)
        assert interrupted_everywhere(lambda: engine.try_acquire(claim), clean, backend, queue, session) > 30
    eventually(lambda: engine._session.idle, "something is left to be done")
