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

TEN_YEARS = "at most 316224000 seconds (ten years), not"
RECIPES: list[Any] = [
    advisory_lock,
    lambda name, **rest: lock_all([name], **rest),
    lambda name, **rest: semaphore(name, 2, **rest),
]


def refused(error: type[Exception], message: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    with pytest.raises(error) as said:
        call(*args, **kwargs)
    assert str(said.value) == message


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("", ValueError, "name must not be empty."),
        ("x" * 513, ValueError, "name must have at most 512 characters, not 513."),
        (None, TypeError, "name must be a str, not NoneType."),
        (b"bytes", TypeError, "name must be a str, not bytes."),
        (gettext_lazy("lazy"), TypeError, "name must be a str, not __proxy__."),
    ],
)
def test_names(name: Any, error: type[Exception], message: str) -> None:
    for recipe in [*RECIPES, lambda name: locked([name])]:
        refused(error, message, recipe, name)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-1, ValueError, "must not be negative, not -1."),
        (-5e-324, ValueError, "must not be negative, not -5e-324."),
        (math.nan, ValueError, "must be finite, not nan."),
        (math.inf, ValueError, "must be finite, not inf."),
        (True, TypeError, "must be a number of seconds, not bool."),
        ("1", TypeError, "must be a number of seconds, not str."),
        (Decimal(1), TypeError, "must be a number of seconds, not Decimal."),
        (1_795_000_000_000, ValueError, f"must be {TEN_YEARS} 1795000000000."),
        (316224001.0, ValueError, f"must be {TEN_YEARS} 316224001.0."),
        pytest.param(10**400, ValueError, f"must be {TEN_YEARS} {10**400}.", id="beyond every float"),
    ],
)
def test_times(me: Actor, lock: Any, value: Any, error: type[Exception], message: str) -> None:
    """Of recipes, of calls, and of a lease. A timeout may be None, and that is said; 0 is a timeout and no TTL."""
    of_timeouts = "timeout " + message.replace("a number of seconds,", "a number of seconds or None,")
    if "finite" in message:
        of_timeouts += " Use None to wait for ever."
    of_ttls = "ttl " + message.replace("must not be negative", "must be above zero")
    for recipe in RECIPES:
        refused(error, of_timeouts, recipe, "name", timeout=value)
        refused(error, of_ttls, recipe, "name", ttl=value)
    with pytest.raises(error, match=r"^max_hold must "):
        advisory_lock("name", max_hold=value)
    for call in (me.acquire, me.try_acquire):
        refused(error, of_timeouts, call, lock, timeout=value)
    lease = me.acquire(lock, timeout=0)
    refused(error, of_ttls, me.extend, lease, value)
    assert lease.held
    me.release(lease)


def test_zero_and_none() -> None:
    for recipe in RECIPES:
        refused(ValueError, "ttl must be above zero, not -0.0.", recipe, "name", ttl=-0.0)
        refused(TypeError, "ttl must be a number of seconds, not NoneType.", recipe, "name", ttl=None)
    refused(ValueError, "max_hold must be above zero, not 0.", advisory_lock, "name", max_hold=0)
    assert advisory_lock("name", max_hold=None).max_hold is None


ON_BUSY = 'on_busy must be "raise", "skip" or a callable, not'


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(advisory_lock, using=7), TypeError, "using must be a str, the alias in DISTLOCK, not int."),
        (partial(advisory_lock, shared=1), TypeError, "shared must be a bool, not int."),
        (partial(advisory_lock, cancel_on_loss=1), TypeError, "cancel_on_loss must be a bool, not int."),
        (partial(advisory_lock, on_busy="retry"), ValueError, f"{ON_BUSY} 'retry'."),
        (partial(advisory_lock, on_busy=None), TypeError, f"{ON_BUSY} None."),
        (partial(semaphore, limit=0), ValueError, "limit must be above zero, not 0."),
        (partial(semaphore, limit=-3), ValueError, "limit must be above zero, not -3."),
        (partial(semaphore, limit=True), TypeError, "limit must be an int, not bool."),
        (partial(semaphore, limit=1.5), TypeError, "limit must be an int, not float."),
        (lambda _: lock_all([]), ValueError, "names must not be empty."),
        (lambda _: lock_all([""]), ValueError, "name must not be empty."),
        (lambda name: lock_all([name, 7]), TypeError, "name must be a str, not int."),
        (
            lock_all,
            TypeError,
            "names must be an iterable of names, not one str; for one lock use advisory_lock().",
        ),
    ],
)
def test_other_arguments(call: Callable[..., Any], error: type[Exception], message: str) -> None:
    refused(error, message, call, "x")


def test_an_unknown_alias_is_an_error_at_first_use_and_not_before(me: Actor) -> None:
    for recipe in RECIPES:
        lock = recipe("name", using="nowhere")
        with pytest.raises(ImproperlyConfigured, match=r"^There is no lock backend 'nowhere' in DISTLOCK\. Known: "):
            me.acquire(lock)


@both_faces
def test_on_busy_belongs_to_the_decorator_and_arguments_are_keywords(me: Actor, using: str, name: str) -> None:
    with pytest.raises(TypeError, match=r"^on_busy belongs to the decorator; in a with block use try_acquire\(\)"):
        me.enter(advisory_lock(name, using=using, on_busy="skip"))
    with pytest.raises(TypeError):
        advisory_lock("name", "memory")  # type: ignore[misc]


def test_what_can_be_asked_for_with_locked() -> None:
    """A semaphore may be held and have a free slot, so it is neither held nor free."""
    refused(TypeError, "name must be a str, not semaphore.", locked, [semaphore("some", 2)])
    message = "names must be an iterable of names, not one str; for one lock use advisory_lock(name).locked()."
    refused(TypeError, message, locked, "some")
    refused(TypeError, "using must be a str, the alias in DISTLOCK, not NoneType.", locked, [], using=None)
    with pytest.raises(ImproperlyConfigured, match="There is no lock backend 'nowhere' in DISTLOCK"):
        locked(["some"], using="nowhere")
