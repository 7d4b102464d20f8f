"""Bad input fails at once, with an error that names the argument, and with nothing held."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy

from django_distlock import advisory_lock, lock_all, semaphore
from tests.matrix import MATRIX, Entry
from tests.support.sizes import LONG

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.actors import Actor


@pytest.fixture(
    params=[entry for entry in MATRIX if LONG or entry.using in ("memory", "postgres", "redis")],
    ids=lambda entry: entry.using,
)
def entry(request: pytest.FixtureRequest, databases: None) -> Entry:
    """Bad input is refused before any backend is asked: in a run of usual size three of them are enough."""
    return request.param  # type: ignore[no-any-return]


NAMES: list[tuple[Any, type[Exception], str]] = [
    ("", ValueError, "name must not be empty."),
    ("x" * 513, ValueError, "name must have at most 512 characters, not 513."),
    (None, TypeError, "name must be a str, not NoneType."),
    (7, TypeError, "name must be a str, not int."),
    (b"bytes", TypeError, "name must be a str, not bytes."),
    (gettext_lazy("lazy"), TypeError, "name must be a str, not __proxy__."),
]
TEN_YEARS = "at most 316224000 seconds (ten years), not"
TIMES: list[tuple[Any, type[Exception], str]] = [
    (-1, ValueError, "must not be negative, not -1."),
    (-0.001, ValueError, "must not be negative, not -0.001."),
    (math.nan, ValueError, "must be finite, not nan."),
    (math.inf, ValueError, "must be finite, not inf."),
    (-math.inf, ValueError, "must be finite, not -inf."),
    (True, TypeError, "must be a number of seconds, not bool."),
    (False, TypeError, "must be a number of seconds, not bool."),
    ("1", TypeError, "must be a number of seconds, not str."),
    (Decimal(1), TypeError, "must be a number of seconds, not Decimal."),
    (1j, TypeError, "must be a number of seconds, not complex."),
    (1_795_000_000_000, ValueError, f"must be {TEN_YEARS} 1795000000000."),
]
RECIPES: list[Any] = [
    advisory_lock,
    lambda name, **rest: lock_all([name], **rest),
    lambda name, **rest: semaphore(name, 2, **rest),
]
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=["advisory_lock", "lock_all", "semaphore"])


@every_recipe
@pytest.mark.parametrize(("name", "error", "message"), NAMES)
def test_names(recipe: Callable[..., Any], name: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        recipe(name)
    assert str(refused.value) == message


def _message_of_timeout(message: str) -> str:
    """None is allowed there, and said so."""
    if message.startswith("must be finite"):
        message += " Use None to wait for ever."
    return "timeout " + message.replace("a number of seconds,", "a number of seconds or None,")


@every_recipe
@pytest.mark.parametrize(("value", "error", "message"), TIMES)
def test_timeouts(recipe: Callable[..., Any], value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        recipe("name", timeout=value)
    assert str(refused.value) == _message_of_timeout(message)


@pytest.mark.parametrize(("value", "error", "message"), TIMES)
@pytest.mark.parametrize("attempt", ["acquire", "try_acquire"])
def test_timeouts_of_a_call(
    me: Actor, using: str, name: str, attempt: str, value: Any, error: type[Exception], message: str
) -> None:
    lock = advisory_lock(name, using=using)
    with pytest.raises(error) as refused:
        getattr(me, attempt)(lock, timeout=value)
    assert str(refused.value) == _message_of_timeout(message)
    me.release(me.acquire(lock, timeout=0))


@every_recipe
@pytest.mark.parametrize(("value", "error", "message"), [*TIMES, (0, ValueError, "must be above zero, not 0.")])
def test_ttl(recipe: Callable[..., Any], value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        recipe("name", ttl=value)
    if value is not False and error is ValueError and "negative" in message:
        message = message.replace("must not be negative", "must be above zero")
    assert str(refused.value) == "ttl " + message


@pytest.mark.parametrize(("value", "error", "message"), [*TIMES, (0, ValueError, "must be above zero, not 0.")])
def test_max_hold(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        advisory_lock("name", max_hold=value)
    assert str(refused.value).startswith("max_hold must ")


def test_ttl_none_is_refused_and_max_hold_none_is_not() -> None:
    with pytest.raises(TypeError, match=r"^ttl must be a number of seconds, not NoneType\.$"):
        advisory_lock("name", ttl=None)
    assert advisory_lock("name", max_hold=None).max_hold is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"using": None}, TypeError, "using must be a str, the alias in DISTLOCK, not NoneType."),
        ({"using": 7}, TypeError, "using must be a str, the alias in DISTLOCK, not int."),
        ({"shared": 1}, TypeError, "shared must be a bool, not int."),
        ({"shared": None}, TypeError, "shared must be a bool, not NoneType."),
        ({"on_busy": "retry"}, ValueError, 'on_busy must be "raise", "skip" or a callable, not \'retry\'.'),
        ({"on_busy": None}, TypeError, 'on_busy must be "raise", "skip" or a callable, not None.'),
    ],
)
def test_other_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        advisory_lock("name", **arguments)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("limit", "error", "message"),
    [
        (0, ValueError, "limit must be above zero, not 0."),
        (-3, ValueError, "limit must be above zero, not -3."),
        (True, TypeError, "limit must be an int, not bool."),
        (1.5, TypeError, "limit must be an int, not float."),
        (None, TypeError, "limit must be an int, not NoneType."),
    ],
)
def test_limits(limit: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        semaphore("name", limit)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ("names", TypeError, "names must be an iterable of names, not one str; for one lock use advisory_lock()."),
        ([], ValueError, "names must not be empty."),
        ([""], ValueError, "name must not be empty."),
        (["a", 7], TypeError, "name must be a str, not int."),
    ],
)
def test_sets_of_names(names: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        lock_all(names)
    assert str(refused.value) == message


@every_recipe
def test_an_unknown_alias_is_an_error_at_first_use_and_not_before(
    me: Actor, recipe: Callable[..., Any], entry: Any
) -> None:
    lock = recipe("name", using="nowhere")
    with pytest.raises(ImproperlyConfigured) as refused:
        me.acquire(lock)
    assert str(refused.value).startswith("There is no lock backend 'nowhere' in DISTLOCK. Known: 'default', 'memory'")


def test_on_busy_belongs_to_the_decorator(me: Actor, using: str, name: str) -> None:
    with pytest.raises(TypeError, match=r"^on_busy belongs to the decorator; in a with block use try_acquire\(\)"):
        me.enter(advisory_lock(name, using=using, on_busy="skip"))


def test_arguments_are_keywords() -> None:
    with pytest.raises(TypeError):
        advisory_lock("name", "memory")  # type: ignore[misc]
    with pytest.raises(TypeError):
        advisory_lock()  # type: ignore[call-arg]
