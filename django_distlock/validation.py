"""Checks of arguments. Each raises an error that names the argument."""

from __future__ import annotations

import math
import pkgutil
from enum import Enum
from typing import Any, Final, Literal

# The longest time that is accepted, in seconds: 10 years. A larger number is milliseconds or a timestamp.
LONGEST = 10 * 366 * 86400.0


class Unset(Enum):
    """The type of :data:`UNSET`."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
Timeout = float | None | Literal[Unset.UNSET]


def seconds(argument: str, value: object, *, none: bool = False, positive: bool = False) -> float | None:
    """Return ``value`` as a float of seconds.

    TypeError if it is not a number (a bool is not), ValueError if it is negative, NaN, infinite or beyond ten years, or
    zero with ``positive``. None is accepted only with ``none``.
    """
    if value is None and none:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        allowed = "a number of seconds or None" if none else "a number of seconds"
        raise TypeError(f"{argument} must be {allowed}, not {type(value).__name__}.")
    if isinstance(value, float) and not math.isfinite(value):  # an int may be too large for a float
        hint = " Use None to wait for ever." if none else ""
        raise ValueError(f"{argument} must be finite, not {value}.{hint}")
    if positive and value <= 0:
        raise ValueError(f"{argument} must be above zero, not {value}.")
    if value < 0:
        raise ValueError(f"{argument} must not be negative, not {value}.")
    if value > LONGEST:
        raise ValueError(f"{argument} must be at most {LONGEST:.0f} seconds (ten years), not {value}.")
    return float(value)


def optional_seconds(argument: str, value: object, *, none: bool = False, positive: bool = False) -> Timeout:
    """As :func:`seconds`, but UNSET is accepted."""
    if value is UNSET:
        return UNSET
    return seconds(argument, value, none=none, positive=positive)


def flag(argument: str, value: object) -> bool:
    """Return ``value`` if it is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{argument} must be a bool, not {type(value).__name__}.")
    return value


def count(argument: str, value: object) -> int:
    """Return ``value`` if it is an int above zero."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be an int, not {type(value).__name__}.")
    if value < 1:
        raise ValueError(f"{argument} must be above zero, not {value}.")
    return value


def function(argument: str, value: object) -> Any:
    """Return a callable that is given itself or by its dotted path; None for None."""
    try:
        found = pkgutil.resolve_name(value) if isinstance(value, str) else value
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{argument}: {error}") from error
    if found is not None and not callable(found):
        raise TypeError(f"{argument} must be a callable, or the dotted path of one.")
    return found
