"""Names are written in spite of what comes between: passing failures, crowds, and somebody who empties the table."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest

from django_distlock import advisory_lock
from django_distlock.backends.sessions import names as notes
from django_distlock.backends.sessions.names import TABLE
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.name_log import HELD_AGAIN
from django_distlock.manager.registry import registry
from django_distlock.operations.pruning import prune
from tests.conftest import eventually
from tests.engines.redis.test_faults import refuse
from tests.engines.sessions.test_sessions import without_heartbeats
from tests.engines.statements import counted
from tests.faults.server import SESSION_LOCKS, ask, end_session, noted

from .test_names import MOVED, RENAME, Looks, looks

__all__ = ["looks"]
pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)

# less than the longest pause, after which a name is written anyway
SOON = 10.0  # seconds


def written_soon(looks: Looks, using: str, name: str) -> None:
    """It is looked once more and once more, as the keepalive thread does."""

    def found() -> Any:
        looks.look(using)
        return noted(using, name)

    eventually(found, "the name is not written", SOON, pause=0.1)


@each_engine
def test_after_a_failure_that_passes_the_name_is_written_soon(using: str, name: str, looks: Looks) -> None:
    """The server has ended the session that names are written on: a restart, an administrator, a firewall."""
    backend: Any = registry.entry(using).backend
    with advisory_lock(name + " before", using=using):
        for _ in range(2):
            looks.look(using)
    (idle,) = backend.sessions._idle
    end_session(using, idle.server_id)
    with advisory_lock(name, using=using):
        written_soon(looks, using, name)


@each_engine
def test_after_migrate_the_name_is_written_soon(using: str, name: str, looks: Looks) -> None:
    with advisory_lock(name, using=using):
        ask(using, RENAME.format(TABLE, MOVED))
        try:
            for _ in range(2):
                looks.look(using)
        finally:
            ask(using, RENAME.format(MOVED, TABLE))
        written_soon(looks, using, name)


@each_engine
def test_a_server_that_goes_on_refusing_is_asked_less_and_less(using: str, name: str, looks: Looks) -> None:
    backend: Any = registry.entry(using).backend
    ask(using, RENAME.format(TABLE, MOVED))
    pauses: list[tuple[float, float]] = []  # from the end of the look, and from its beginning
    try:
        with advisory_lock(name, using=using):
            looks.look(using)
            for _ in range(15):
                began = monotonic()
                looks.look(using)
                until = backend._notes._rests_until
                pauses.append((until - monotonic(), until - began))
                backend._notes._rests_until = 0.0  # it is over
    finally:
        ask(using, RENAME.format(MOVED, TABLE))
    expected = [min(notes.FIRST * 2**number, notes.REFUSED) for number in range(15)]
    for (least, most), pause in zip(pauses, expected, strict=True):
        assert least <= pause <= most


@each_engine
def test_a_thread_that_cannot_be_started_is_started_later(
    using: str, name: str, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with advisory_lock(name, using=using):
        looks.look(using)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            looks.look(using)
        written_soon(looks, using, name)


@each_engine
def test_all_of_a_crowd_are_written_once(using: str, name: str, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    """More names are held at a time than the book remembers."""
    monkeypatch.setattr("django_distlock.manager.name_log.REMEMBERED", 3)
    names = [f"{name} {number}" for number in range(10)]
    with ExitStack() as stack:
        for each in names:
            stack.enter_context(advisory_lock(each, using=using))
        for _ in range(3):
            looks.look(using)
        assert all(noted(using, each) for each in names)
        with counted(using) as found:
            for _ in range(3):
                looks.look(using)
    assert without_heartbeats(found) == {}


@each_engine
def test_what_is_held_for_long_is_written_again(using: str, name: str, looks: Looks) -> None:
    """Others have displaced it, or somebody has emptied the table."""
    with advisory_lock(name, using=using):
        for _ in range(2):
            looks.look(using)
        (before,) = noted(using, name)
        prune(using, days=0)
        looks.look(using, HELD_AGAIN / 2)
        assert not noted(using, name)
        looks.look(using, HELD_AGAIN / 2)
        assert list(noted(using, name)) == [before]
    looks.look(using)
    assert [row[2] for row in noted(using, name)] == [0], "nobody holds it any more"
