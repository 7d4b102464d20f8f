"""A decorator above what has registered the function already: the worker or router calls the function without it."""

from __future__ import annotations

import functools
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import django
import pytest
from faststream.redis import RedisBroker

from django_distlock import advisory_lock, lock_all, row_lock, semaphore, table_lock
from django_distlock.browser import requires_lock
from django_distlock.editing.views import edit_locked
from django_distlock.idempotency import idempotent
from tests.data.app.models import Account
from tests.locks.elsewhere import is_free

if TYPE_CHECKING:
    from collections.abc import Callable

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ninja import NinjaAPI

DECORATORS: dict[str, Callable[[Any], Any]] = {
    "advisory_lock": advisory_lock("x", using="memory"),
    "lock_all": lock_all(["x", "y"], using="memory"),
    "semaphore": semaphore("x", 2, using="memory"),
    "row_lock": row_lock(Account, pk="pk"),
    "table_lock": table_lock(Account),
    "requires_lock": requires_lock("x"),
    "edit_locked": edit_locked(Account),
    "idempotent": idempotent,
    "idempotent with options": idempotent(required=True),
}


def send_invoice(request: Any = None, pk: int = 7) -> bool:
    """Is the lock held while this runs?"""
    return not is_free("x")


class Holder:
    """An object that has registered a function, and calls it when it is called."""

    def __init__(self, function: Any) -> None:
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def marked(method: str) -> type[Holder]:
    """The method by which such objects are known: a worker gets the function by it."""
    return type(method, (Holder,), {method: lambda self, *args: None})


Celery = marked("delay")


class Proxy:
    """As Celery's for ``@shared_task``: it has nothing itself."""

    def __init__(self, function: Any) -> None:
        object.__setattr__(self, "_task", Celery(function))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    __class__ = property(lambda self: type(self._task))  # type: ignore[assignment]
    __dict__ = property(lambda self: vars(self._task))  # type: ignore[assignment]

    def __call__(self, *args: Any) -> Any:
        return self._task(*args)


def rq(function: Any) -> Any:
    """The function itself, with methods."""
    made: Any = functools.wraps(function)(lambda *args: function(*args))
    made.delay = made.enqueue = lambda *args: None
    return made


def ninja(function: Any) -> Any:
    return NinjaAPI(urls_namespace="registered").post("/")(functools.wraps(function)(lambda request: True))


def faststream(function: Any) -> Any:
    async def handle(body: str) -> None: ...

    return RedisBroker().subscriber("registered")(handle)


KINDS: dict[str, Callable[[Any], Any]] = {
    "celery": Celery,
    "shared_task": Proxy,
    "dramatiq": marked("send"),
    "huey": marked("schedule"),
    "procrastinate": marked("defer"),
    "taskiq": marked("kiq"),
    "rq": rq,
    "ninja": ninja,
    "faststream": faststream,
}
if django.VERSION >= (6, 0):
    KINDS["django"] = import_module("django.tasks").task


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_registered_already_is_refused(kind: str) -> None:
    with pytest.raises(TypeError, match="below @shared_task"):
        DECORATORS["advisory_lock"](KINDS[kind](send_invoice))


@pytest.mark.parametrize("name", DECORATORS)
def test_every_decorator_refuses_it_and_says_where_it_goes(name: str) -> None:
    registered = Celery(send_invoice)
    between = functools.wraps(registered)(lambda *args: registered(*args))
    it = "@idempotent" if "idempotent" in name else "the lock"
    message = (
        f"send_invoice is registered already (it has 'delay'): a worker or router calls the function inside, without "
        f"{it}. Put {it} below @shared_task, or below whichever decorator has registered the function."
    )
    for function in (registered, between):
        with pytest.raises(TypeError) as refused:
            DECORATORS[name](function)
        assert str(refused.value) == message


def test_below_it_the_lock_is_held() -> None:
    for kind in (Celery, Proxy, rq):
        assert kind(advisory_lock("x", using="memory")(send_invoice))() is True


class Mailer:
    """A callable whose methods only sound alike: it sends mail, and holds no function."""

    schedule, delay = "no method", 5

    def send(self) -> None: ...

    def __call__(self, pk: int) -> bool:
        return not is_free("x")


def slow(pk: int) -> bool:
    return not is_free("x")


slow.delay = 5  # type: ignore[attr-defined]

LEGAL = [
    slow,
    Mailer(),
    Mailer().__call__,
    functools.lru_cache(slow),
    functools.singledispatch(slow),
    functools.partial(Celery(send_invoice), None),
    Celery(send_invoice).function,
]


@pytest.mark.parametrize("function", LEGAL)
def test_other_callables_stay_legal(function: Any) -> None:
    assert advisory_lock("x", using="memory")(function)(7) is True


def test_stand_ins_of_tests_and_what_sends_a_task_stay_legal() -> None:
    """A mock has every attribute that it is asked for; ``delay`` is no task itself: the message is sent in the lock."""
    stand_in = MagicMock(return_value=7)
    assert advisory_lock("x", using="memory")(stand_in)() == 7
    assert idempotent(stand_in) is not stand_in
    assert advisory_lock("x", using="memory")(Celery(send_invoice).delay)() is None
