"""Bad input fails at once, and the message names the argument."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_distlock.validation import LONGEST, UNSET, count, optional_seconds, seconds


@given(st.floats(min_value=0, max_value=LONGEST) | st.integers(0, int(LONGEST)))
def test_a_number_of_seconds_comes_back_as_a_float(value: float) -> None:
    for check in (seconds, optional_seconds):
        result = check("timeout", value)
        assert result == value
        assert type(result) is float


@pytest.mark.parametrize(
    ("value", "options", "error", "message"),
    [
        (True, {}, TypeError, "timeout must be a number of seconds, not bool."),
        (False, {"none": True}, TypeError, "timeout must be a number of seconds or None, not bool."),
        ("5", {}, TypeError, "timeout must be a number of seconds, not str."),
        ("5", {"none": True}, TypeError, "timeout must be a number of seconds or None, not str."),
        (None, {}, TypeError, "timeout must be a number of seconds, not NoneType."),
        (Decimal(1), {}, TypeError, "timeout must be a number of seconds, not Decimal."),
        (1j, {}, TypeError, "timeout must be a number of seconds, not complex."),
        (math.nan, {}, ValueError, "timeout must be finite, not nan."),
        (math.nan, {"none": True}, ValueError, "timeout must be finite, not nan. Use None to wait for ever."),
        (math.inf, {"none": True}, ValueError, "timeout must be finite, not inf. Use None to wait for ever."),
        (-math.inf, {}, ValueError, "timeout must be finite, not -inf."),
        (-1, {}, ValueError, "timeout must not be negative, not -1."),
        (-5e-324, {}, ValueError, "timeout must not be negative, not -5e-324."),
        (-1, {"positive": True}, ValueError, "timeout must be above zero, not -1."),
        (0, {"positive": True}, ValueError, "timeout must be above zero, not 0."),
        (-0.0, {"positive": True}, ValueError, "timeout must be above zero, not -0.0."),
        (LONGEST + 1, {}, ValueError, "timeout must be at most 316224000 seconds (ten years), not 316224001.0."),
        (1732167207000, {}, ValueError, "timeout must be at most 316224000 seconds (ten years), not 1732167207000."),
    ],
)
@pytest.mark.parametrize("check", [seconds, optional_seconds])
def test_what_is_no_number_of_seconds(
    check: Any, value: object, options: dict[str, bool], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        check("timeout", value, **options)
    assert str(raised.value) == message


def test_an_int_beyond_every_float_is_refused_like_any_other() -> None:
    """Such an int cannot even be asked whether it is finite: that raises OverflowError."""
    with pytest.raises(OverflowError):
        math.isnan(10**400)
    with pytest.raises(ValueError, match=r"^ttl must be at most 316224000 seconds"):
        seconds("ttl", 10**400)


def test_the_bounds_themselves_are_allowed() -> None:
    assert seconds("timeout", 0) == 0
    assert seconds("timeout", LONGEST, positive=True) == LONGEST
    assert seconds("timeout", 5e-324, positive=True) == 5e-324
    assert seconds("timeout", None, none=True) is None


def test_unset_passes_only_where_it_means_something() -> None:
    assert optional_seconds("ttl", UNSET, positive=True) is UNSET
    assert repr(UNSET) == "UNSET"
    with pytest.raises(TypeError, match=r"^ttl must be a number of seconds, not Unset\.$"):
        seconds("ttl", UNSET)


@given(st.integers(min_value=1))
def test_a_count_is_any_int_above_zero(value: int) -> None:
    assert count("limit", value) == value


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "limit must be above zero, not 0."),
        (-3, ValueError, "limit must be above zero, not -3."),
        (True, TypeError, "limit must be an int, not bool."),
        (1.0, TypeError, "limit must be an int, not float."),
        (None, TypeError, "limit must be an int, not NoneType."),
        ("1", TypeError, "limit must be an int, not str."),
    ],
)
def test_what_is_no_count(value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        count("limit", value)
    assert str(raised.value) == message
