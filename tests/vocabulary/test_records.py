"""The values that cross boundaries, and the drift that a lease is held to be shorter by (R19)."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_distlock.keys import LockKey
from django_distlock.records import BackendReport, Claim, Grant, LockInfo, drift

KEY = LockKey("a", "n", b"x" * 32)


@pytest.mark.parametrize(("ttl", "expected"), [(0, 0.002), (1, 0.012), (30, 0.302), (3600, 36.002)])
def test_r19_drift_is_one_percent_and_two_milliseconds(ttl: float, expected: float) -> None:
    assert drift(ttl) == pytest.approx(expected, abs=1e-12)


@given(st.floats(min_value=0.01, max_value=10 * 366 * 86400), st.floats(min_value=0.01, max_value=10 * 366 * 86400))
def test_r19_drift_leaves_some_of_the_lease_and_grows_with_it(one: float, other: float) -> None:
    shorter, longer = sorted((one, other))
    assert 0 < drift(shorter) <= drift(longer) < longer


def test_a_claim_is_exclusive_without_ttl_in_a_session_unless_told() -> None:
    claim = Claim(key=KEY)
    assert (claim.shared, claim.ttl, claim.token, claim.scope) == (False, None, "", "session")
    assert claim == Claim(key=LockKey("other alias", "other name", b"x" * 32))
    assert len({claim, Claim(key=KEY), Claim(key=KEY, token="t")}) == 2


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (Claim(key=KEY), "token"),
        (LockInfo(backend="a", key="k"), "holder"),
        (BackendReport(alias="a", backend="b"), "locks"),
    ],
)
def test_a_record_cannot_be_changed_by_those_who_get_it(record: object, field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(record, field, "other")
    assert not hasattr(record, "__dict__")


def test_a_grant_has_no_fence_and_no_end_unless_told() -> None:
    grant = Grant(Claim(key=KEY), 1.0)
    assert (grant.fence, grant.valid_until, grant.session) == (None, None, None)


def test_details_of_one_lock_are_not_those_of_another() -> None:
    first, second = LockInfo(backend="a", key="k"), LockInfo(backend="a", key="k")
    assert first == second
    assert first.details is not second.details


def test_a_backend_that_did_not_answer_has_no_locks() -> None:
    report = BackendReport(alias="a", backend="b", error="BackendUnavailable")
    assert report.locks == ()
