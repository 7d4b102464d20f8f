"""What is noted of a hold is shown of that hold only, not of a later one on the same session."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import django_distlock.manager.registry
from django_distlock import advisory_lock, break_lock
from django_distlock.keys import LockKey
from django_distlock.manager.registry import registry
from django_distlock.operations.pruning import prune
from tests.conftest import eventually
from tests.faults.server import SESSION_LOCKS, key_of, noted
from tests.operations.test_names import Looks, looks
from tests.support.timing import within

if TYPE_CHECKING:
    from django_distlock.records import LockInfo

__all__ = ["looks"]
pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)


def shown(using: str, name: str) -> LockInfo:
    """As another process is shown it: what this one knows of itself does not help."""
    backend: Any = registry.entry(using).backend
    key = backend.listed_as(key_of(using, name))
    (info,) = [info for info in backend.inspect() if info.key == key]
    return info


@each_engine
def test_a_later_hold_is_not_shown_as_old(using: str, name: str, looks: Looks) -> None:
    """A process that takes a name again and again, each time for a moment, once held it for long."""
    lock = advisory_lock(name, using=using)
    with lock:
        for _ in range(3):
            looks.look(using)
        assert shown(using, name).acquired_at is not None
    looks.look(using)
    asked = datetime.now(UTC)
    with lock:
        since = shown(using, name).acquired_at
        assert since is None or since >= asked, "the time of an earlier hold is shown"
        for _ in range(3):
            looks.look(using)
        since = shown(using, name).acquired_at
        assert since is not None
        assert abs((since - asked).total_seconds()) < 1


@each_engine
def test_a_note_of_somebody_else_is_left_alone(using: str, name: str, looks: Looks) -> None:
    """The lock changes hands, and the new holder notes itself before the old one has said that its hold is over."""
    first = advisory_lock(name, using=using).acquire()
    for _ in range(3):
        looks.look(using)
    first.release()
    backend: Any = registry.entry(using).backend
    for session in backend.sessions.all():
        backend.sessions.drop(session)  # the next hold is on another session
    with advisory_lock(name, using=using) as second:
        other = Looks()
        for _ in range(3):
            other.look(using)
        looks.look(using)
        looks.look(using)
        assert noted(using, name)[0][2] == backend.server_session(second._grant)


@each_engine
def test_what_was_shown_does_not_break_a_later_hold_of_the_same_session(using: str, name: str, looks: Looks) -> None:
    lock = advisory_lock(name, using=using)
    with lock:
        for _ in range(3):
            looks.look(using)
        before = shown(using, name)
    looks.look(using)
    with lock as lease:
        assert break_lock(before) is False
        for _ in range(3):
            looks.look(using)
        assert break_lock(before) is False
        lease.ensure_held()
        assert break_lock(shown(using, name)) is True
        eventually(lambda: lease.lost, "the holder is not told")
        lease._release(False)


def test_two_names_with_one_key_that_one_process_holds_at_once(
    name: str, looks: Looks, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """A session of PostgreSQL lets itself in again, so that both are met at one look."""

    def broken(secret: str, alias: str, *parts: str) -> LockKey:
        whole = derive(secret, alias, *parts)
        return LockKey(alias, whole.name, b"collides" * 3 + whole.digest[24:])

    derive = django_distlock.manager.registry.derive_key
    monkeypatch.setattr(django_distlock.manager.registry, "derive_key", broken)
    with advisory_lock(name + "-a", using="postgres"), advisory_lock(name + "-b", using="postgres"):
        for _ in range(4):
            looks.look("postgres")
    prune("postgres", days=0)
    assert caplog.text.count("have the same key") == 1


@each_engine
def test_the_time_does_not_depend_on_how_long_connecting_takes(
    using: str, name: str, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = registry.entry(using).backend
    aside = backend._notes._sessions.aside

    def slowly(ask: Any, until: float) -> Any:
        time.sleep(0.7)
        return (yield from aside(ask, until))

    with advisory_lock(name, using=using):
        began = datetime.now(UTC)
        monkeypatch.setattr(backend._notes._sessions, "aside", slowly)
        for _ in range(2):
            looks.look(using)
        monkeypatch.undo()
        since = shown(using, name).acquired_at
    assert since is not None
    within((since - began).total_seconds(), 0.35, least=-0.35)
