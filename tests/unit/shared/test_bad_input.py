"""Bad input fails at once, with an error that names the argument, and with nothing held."""

from __future__ import annotations

import math
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy

from django_distlock import advisory_lock, lock_all, locked, semaphore
from tests.contract.conftest import both_faces

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.actors import Actor

RECIPES: list[Any] = [
    advisory_lock,
    lambda name, **rest: lock_all([name], **rest),
    lambda name, **rest: semaphore(name, 2, **rest),
]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("", ValueError, "not be empty"),
        ("x" * 513, ValueError, "at most 512 characters, not 513"),
        (None, TypeError, "be a str, not NoneType"),
        (b"bytes", TypeError, "be a str, not bytes"),
        (gettext_lazy("lazy"), TypeError, "be a str, not __proxy__"),
    ],
)
def test_names(name: Any, error: type[Exception], message: str) -> None:
    for recipe in [*RECIPES, lambda name: locked([name])]:
        with pytest.raises(error, match=f"^name must (have )?{message}"):
            recipe(name)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-1, ValueError, "-1"),
        (-5e-324, ValueError, "-5e-324"),
        (math.nan, ValueError, "finite, not nan"),
        (math.inf, ValueError, "finite, not inf"),
        (True, TypeError, "a number of seconds.* not bool"),
        ("1", TypeError, "a number of seconds.* not str"),
        (Decimal(1), TypeError, "a number of seconds.* not Decimal"),
        (316224001.0, ValueError, r"at most 316224000 seconds \(ten years\)"),
        pytest.param(10**400, ValueError, r"at most 316224000 seconds \(ten years\)", id="beyond every float"),
    ],
)
def test_times(me: Actor, lock: Any, value: Any, error: type[Exception], message: str) -> None:
    """Of recipes, of calls, and of a lease."""
    for argument in ("timeout", "ttl", "max_hold"):
        for recipe in RECIPES if argument != "max_hold" else [advisory_lock]:
            with pytest.raises(error, match=f"^{argument} must .*{message}"):
                recipe("name", **{argument: value})
    for call in (me.acquire, me.try_acquire):
        with pytest.raises(error, match=f"^timeout must .*{message}"):
            call(lock, timeout=value)
    lease = me.acquire(lock, timeout=0)
    with pytest.raises(error, match=f"^ttl must .*{message}"):
        me.extend(lease, value)
    assert lease.held
    me.release(lease)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(advisory_lock, ttl=-0.0), ValueError, "ttl must be above zero"),
        (partial(advisory_lock, ttl=None), TypeError, "ttl must be a number of seconds, not NoneType"),
        (partial(advisory_lock, max_hold=0), ValueError, "max_hold must be above zero"),
        (partial(advisory_lock, using=7), TypeError, "using must be a str, the alias in DISTLOCK, not int"),
        (partial(advisory_lock, shared=1), TypeError, "shared must be a bool, not int"),
        (partial(advisory_lock, cancel_on_loss=1), TypeError, "cancel_on_loss must be a bool, not int"),
        (partial(advisory_lock, on_busy="retry"), ValueError, "on_busy must be .* not 'retry'"),
        (partial(advisory_lock, on_busy=None), TypeError, "on_busy must be .* not None"),
        (lambda name: advisory_lock(name, "memory"), TypeError, "positional"),  # type: ignore[misc]
        (partial(semaphore, limit=0), ValueError, "limit must be above zero, not 0"),
        (partial(semaphore, limit=True), TypeError, "limit must be an int, not bool"),
        (partial(semaphore, limit=1.5), TypeError, "limit must be an int, not float"),
        (lambda _: lock_all([]), ValueError, "names must not be empty"),
        (lambda name: lock_all([name, 7]), TypeError, "name must be a str, not int"),
        (lock_all, TypeError, r"names must be an iterable .* advisory_lock\(\)"),
        (locked, TypeError, r"names must be an iterable .* advisory_lock\(name\)\.locked\(\)"),
        # it may be held and have a free slot, so it is neither held nor free
        (lambda name: locked([semaphore(name, 2)]), TypeError, "name must be a str, not semaphore"),
        (lambda _: locked([], using=None), TypeError, "using must be a str"),  # type: ignore[arg-type]
        (lambda name: locked([name], using="nowhere"), ImproperlyConfigured, "no lock backend 'nowhere' in DISTLOCK"),
    ],
)
def test_other_arguments(call: Callable[..., Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call("x")


def test_an_unknown_alias_is_an_error_at_first_use_and_not_before(me: Actor) -> None:
    for recipe in RECIPES:
        lock = recipe("name", using="nowhere")
        with pytest.raises(ImproperlyConfigured, match=r"^There is no lock backend 'nowhere' in DISTLOCK\. Known: "):
            me.acquire(lock)


@both_faces
def test_on_busy_belongs_to_the_decorator(me: Actor, using: str, name: str) -> None:
    with pytest.raises(TypeError, match=r"^on_busy belongs to the decorator; in a with block use try_acquire\(\)"):
        me.enter(advisory_lock(name, using=using, on_busy="skip"))
