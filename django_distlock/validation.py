"""Checks of arguments. Each raises an error that names the argument."""

from __future__ import annotations

import inspect
import math
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Collection

# The longest time that is accepted, in seconds: 10 years. A larger number is milliseconds or a timestamp.
LONGEST = 10 * 366 * 86400.0
# Methods of objects that have registered a function with a worker: Celery, django.tasks, RQ, Huey, dramatiq,
# procrastinate, taskiq, FastStream. And what django-ninja sets on a function that it has registered with a router.
REGISTERED = ("delay", "apply_async", "enqueue", "call_local", "send_with_options", "defer", "kiq", "call_wrapped")
ROUTED = "_ninja_operation"


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


def check_names(**names: object) -> None:
    """TypeError for an argument that is neither a str nor None."""
    for argument, value in names.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{argument} must be a str or None, not {type(value).__name__}.")


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


def refuse_order(kind: type, mixin: type, base: type) -> None:
    """Raise TypeError if ``base`` comes before ``mixin`` among the bases of ``kind``: its methods would hide those of
    the mixin, which then does nothing."""
    order = kind.__mro__
    if base in order and order.index(base) < order.index(mixin):
        first = next(each for each in kind.__bases__ if issubclass(each, base))
        raise TypeError(f"Put {mixin.__name__} before {first.__name__} among the bases of {kind.__name__}.")


def qualified_name(function: Any) -> str:
    """The qualified name of a function, or of the class of another callable, for messages.

    Not its repr(): that of a bound method of a queryset runs the query.
    """
    named = function if hasattr(function, "__qualname__") else type(function)
    return str(named.__qualname__)


def refuse_registered(function: Any, decorator: str = "the lock") -> None:
    """Raise TypeError if ``function`` is registered with a worker, a scheduler or a router.

    These call the function inside, so a decorator above it has no effect. An object is recognized by what it can do.
    """
    try:
        made = inspect.unwrap(function, stop=lambda inner: _registered_by(inner) is not None)
    except ValueError:  # an object that answers to each name, with itself
        made = function
    if (found := _registered_by(made)) is not None:
        raise TypeError(
            f"{qualified_name(function)} is registered already (it has {found!r}): a worker or router calls the "
            f"function inside, without {decorator}. Put {decorator} below @shared_task, or below whichever decorator "
            "has registered the function."
        )


def _registered_by(function: Any) -> str | None:
    """The attribute that shows that ``function`` is registered; None if it is not.

    Looked up in the class and the ``__dict__``, because a mock has each attribute that it is asked for. A proxy, such
    as Celery's, has the class of its object.
    """
    kind, own = function.__class__, getattr(function, "__dict__", {})
    methods = (name for name in REGISTERED if callable(own.get(name, getattr(kind, name, None))))
    return ROUTED if ROUTED in own else next(methods, None)
