"""R6: busy, lost and unreachable are different errors, and each says something even when nobody gave it words."""

from __future__ import annotations

import pickle

import pytest

from django_distlock import exceptions
from django_distlock.exceptions import (
    BackendUnavailable,
    DeadlockDetected,
    DistlockError,
    LockLost,
    LockNotAcquired,
    LockNotHeld,
    LockTimeout,
    UnsupportedOperation,
)

PARENTS = {
    DistlockError: Exception,
    LockNotAcquired: DistlockError,
    LockTimeout: LockNotAcquired,
    LockLost: DistlockError,
    LockNotHeld: DistlockError,
    DeadlockDetected: DistlockError,
    UnsupportedOperation: DistlockError,
    BackendUnavailable: DistlockError,
}
DEFAULTS = {
    DistlockError: "A lock operation failed.",
    LockNotAcquired: "The lock is held by another caller.",
    LockTimeout: "The lock was still held by another caller at the end of the timeout.",
    LockLost: "The lock was lost before it was released.",
    LockNotHeld: "The lock is not held here.",
    DeadlockDetected: (
        "Waiting for the lock would have been a deadlock; everything that this call had acquired was released."
    ),
    UnsupportedOperation: "The backend of this alias does not support this operation.",
    BackendUnavailable: "The lock backend did not answer.",
}


def test_r6_the_tree_has_these_classes_and_no_others() -> None:
    found = {value for value in vars(exceptions).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert found == set(PARENTS)
    assert {kind: kind.__bases__ for kind in found} == {kind: (parent,) for kind, parent in PARENTS.items()}


@pytest.mark.parametrize("kind", PARENTS)
def test_the_message_without_and_with_words(kind: type[DistlockError]) -> None:
    assert str(kind()) == str(kind(None)) == DEFAULTS[kind]
    assert str(kind("in other words")) == "in other words"
    assert str(kind("")) == ""
    assert kind("x").args == ("x",)


@pytest.mark.parametrize("kind", PARENTS)
def test_an_error_crosses_processes(kind: type[DistlockError]) -> None:
    """Pools and task queues pickle what a worker raised."""
    copy = pickle.loads(pickle.dumps(kind("in other words")))  # noqa: S301 - our own bytes
    assert type(copy) is kind
    assert str(copy) == "in other words"


def test_an_error_of_a_subclass_without_a_docstring_has_no_message_of_its_own() -> None:
    class Bare(DistlockError):
        pass

    assert str(Bare()) == ""
