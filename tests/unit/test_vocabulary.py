"""Errors, values and numbers: R6, busy, lost and unreachable are different errors, and each says something even when
nobody gave it words; text for logs is one harmless line; the drift of a lease (R19)."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
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
from django_distlock.records import BackendReport, Claim, Grant, LockInfo, drift
from django_distlock.validation import LONGEST, UNSET, count, optional_seconds, seconds

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
KEY = LockKey("a", "n", b"x" * 32)


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


def test_r19_drift_is_one_percent_and_two_milliseconds() -> None:
    assert [drift(ttl) for ttl in (0.01, 1, 30)] == pytest.approx([0.0021, 0.012, 0.302], abs=1e-12)


def test_a_record_cannot_be_changed_by_those_who_get_it() -> None:
    with pytest.raises(AttributeError):
        Claim(key=KEY).token = "other"  # type: ignore[misc]
    for record in (LockInfo(backend="a", key="k"), BackendReport(alias="a", backend="b")):
        assert not hasattr(record, "__dict__")
        for field in dataclasses.fields(record):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(record, field.name, "other")


def test_what_was_not_said_is_not_there() -> None:
    claim, grant = Claim(key=KEY), Grant(Claim(key=KEY), 1.0)
    assert (claim.shared, claim.ttl, claim.token, claim.scope) == (False, None, "", "session")
    assert len({claim, Claim(key=KEY), Claim(key=KEY, token="t")}) == 2
    assert "secret" not in repr(Claim(key=KEY, token="secret"))
    assert (grant.fence, grant.valid_until, grant.session) == (None, None, None)
    assert LockInfo(backend="a", key="k").details is not LockInfo(backend="a", key="k").details


@given(st.floats(min_value=0, max_value=LONGEST) | st.integers(0, int(LONGEST)))
def test_a_number_of_seconds_comes_back_as_a_float(value: float) -> None:
    """What is none, tests/unit/shared/test_bad_input.py lists."""
    for check in (seconds, optional_seconds):
        result = check("timeout", value)
        assert (result, type(result)) == (value, float)


def test_the_bounds_themselves_and_what_is_unset() -> None:
    assert seconds("timeout", LONGEST, positive=True) == LONGEST
    assert seconds("timeout", 5e-324, positive=True) == 5e-324
    assert seconds("timeout", None, none=True) is None
    assert optional_seconds("ttl", UNSET, positive=True) is UNSET
    assert repr(UNSET) == "UNSET"
    with pytest.raises(TypeError, match=r"^ttl must be a number of seconds, not Unset\.$"):
        seconds("ttl", UNSET)
    assert count("limit", 10**400) == 10**400
