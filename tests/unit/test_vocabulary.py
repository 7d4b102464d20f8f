"""Errors, values and numbers: R6, busy, lost and unreachable are different errors, and each says something even when
nobody gave it words; text for logs is one harmless line; the drift of a lease (R19)."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from django_distlock import exceptions
from django_distlock.concurrency.text import one_line
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
from django_distlock.keys import LockKey

ERRORS: dict[type[DistlockError], tuple[type, str]] = {
    DistlockError: (Exception, "A lock operation failed."),
    LockNotAcquired: (DistlockError, "The lock is held by another caller."),
    LockTimeout: (LockNotAcquired, "The lock was still held by another caller at the end of the timeout."),
    LockLost: (DistlockError, "The lock was lost before it was released."),
    LockNotHeld: (DistlockError, "The lock is not held here."),
    DeadlockDetected: (
        DistlockError,
        "Waiting for the lock would have been a deadlock; everything that this call had acquired was released.",
    ),
    UnsupportedOperation: (DistlockError, "The backend of this alias does not support this operation."),
    BackendUnavailable: (DistlockError, "The lock backend did not answer."),
}


def test_r6_the_tree_has_these_classes_and_no_others() -> None:
    found = {value for value in vars(exceptions).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert {kind: kind.__bases__ for kind in found} == {kind: (parent,) for kind, (parent, _) in ERRORS.items()}


def test_r6_the_message_without_and_with_words() -> None:
    """Also in another process: pools and task queues pickle what a worker raised."""
    for kind, (_, words) in ERRORS.items():
        assert str(kind()) == str(kind(None)) == words
        assert str(kind("")) == ""
        copy = pickle.loads(pickle.dumps(kind("in other words")))  # noqa: S301 - our own bytes
        assert (type(copy), str(copy), copy.args) == (kind, "in other words", ("in other words",))


HOSTILE = "a\r\nINFO all is well\x1b[2J\u202egnp.exe\u2028\x00\x85\ud800"


def test_what_could_do_harm_in_a_log_is_written_as_an_escape() -> None:
    assert one_line(HOSTILE) == r"a\r\nINFO all is well\x1b[2J\u202egnp.exe\u2028\x00\x85\ud800"
    assert one_line(BackendUnavailable(HOSTILE)) == str(BackendUnavailable(HOSTILE)) == one_line(HOSTILE)
    assert [one_line(value) for value in ("Zürich: 7 € ok", None, 3)] == ["Zürich: 7 € ok", "None", "3"]
    assert one_line("x" * 5, 5) == "x" * 5
    assert one_line("x\n" * 5, 5) == r"x\nx\nx…"


@given(st.text(st.characters()))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    assert one_line(text).isprintable()
    assert repr(LockKey("default", text, b"")).isprintable()
