"""Checks of arguments. Each raises an error that names the argument."""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Collection

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


def choice(argument: str, value: Any, known: Collection[Any]) -> Any:
    """Return ``value`` if it is one of ``known``."""
    if value not in known:
        raise ValueError(f"{argument} must be one of {', '.join(map(str, known))}, not {value!r}.")
    return value
