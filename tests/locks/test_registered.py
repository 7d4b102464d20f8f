"""Tasks and routes: a decorator above what has registered the function already is refused, because the worker or router
calls the function without it; below it the lock is held."""

from __future__ import annotations

import functools
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import django
import pytest
from asgiref.sync import async_to_sync
from faststream.redis import RedisBroker

from django_distlock import advisory_lock, lock_all, row_lock, semaphore, table_lock
from django_distlock.browser import requires_lock
from django_distlock.editing.views import edit_locked
from django_distlock.idempotency import idempotent
from tests.data.app.models import Account
from tests.locks.elsewhere import held_elsewhere, is_free

if TYPE_CHECKING:
    from collections.abc import Callable

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ninja import NinjaAPI

LOCK = advisory_lock("x", using="memory")
DECORATORS: dict[str, Callable[[Any], Any]] = {
    "advisory_lock": LOCK,
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


KINDS: dict[str, Callable[[Any], Any]] = {
    "celery": Celery,
    "shared_task": Proxy,
    "dramatiq": marked("send_with_options"),
    "huey": marked("call_local"),
    "procrastinate": marked("defer"),
    "taskiq": marked("kiq"),
    "rq": rq,
    "ninja": ninja,
    "faststream": RedisBroker().subscriber("registered"),
}
if django.VERSION >= (6, 0):
    KINDS["django"] = import_module("django.tasks").task


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_registered_already_is_refused(kind: str) -> None:
    with pytest.raises(TypeError, match="below @shared_task"):
        LOCK(KINDS[kind](send_invoice))


@pytest.mark.parametrize("name", DECORATORS)
def test_every_decorator_refuses_it_and_says_where_it_goes(name: str) -> None:
    registered = Celery(send_invoice)
    it = "@idempotent" if "idempotent" in name else "the lock"
    for function in (registered, functools.wraps(registered)(lambda *args: registered(*args))):
        with pytest.raises(TypeError, match=rf"send_invoice is registered .*'delay'.* Put {it} below @shared_task"):
            DECORATORS[name](function)


class Mailer:
    """A callable whose methods only sound alike: it sends mail, and holds no function."""

    schedule, delay = "no method", 5

    def send(self) -> None: ...

    def __call__(self, pk: int) -> bool:
        return not is_free("x")


def slow(pk: int) -> bool:
    return not is_free("x")


slow.delay = 5  # type: ignore[attr-defined]
LEGAL: list[Any] = [
    slow,
    Mailer(),
    Mailer().__call__,
    functools.lru_cache(slow),
    functools.singledispatch(slow),
    functools.partial(Celery(send_invoice), None),
    Celery(send_invoice).function,  # type: ignore[attr-defined]
]


def test_other_callables_stay_legal() -> None:
    """So do stand-ins of tests, which have every attribute, and what sends a task: ``delay`` is no task itself, the
    message is sent in the lock."""
    for function in LEGAL:
        assert LOCK(function)(7) is True
    stand_in = MagicMock(return_value=7)
    assert LOCK(stand_in)() == 7
    assert idempotent(stand_in) is not stand_in
    assert LOCK(Celery(send_invoice).delay)() is None  # type: ignore[attr-defined]


def test_below_it_the_lock_is_held() -> None:
    for kind in (Celery, Proxy, rq):
        assert kind(LOCK(send_invoice))() is True


NAME = "decorators:invoice:7"
TEMPLATE = "decorators:invoice:{pk}"


@advisory_lock(TEMPLATE, using="memory", timeout=0)
def send_with_context(context: Any, pk: int) -> bool:
    assert context.attempt == 1
    return is_free(NAME)


@advisory_lock(TEMPLATE, using="memory", timeout=0, on_busy="skip")
async def askip(pk: int) -> bool:
    return is_free(NAME)


@pytest.mark.skipif(django.VERSION < (6, 0), reason="django.tasks came with Django 6.0")
@pytest.mark.parametrize("function", [send_with_context, askip])
def test_r1_held_while_the_task_runs_and_a_busy_one_fails_or_is_skipped(function: Any) -> None:
    job = import_module("django.tasks").task(takes_context=function is send_with_context)(function)
    for run in (job.enqueue, async_to_sync(job.aenqueue)):
        assert run(7).return_value is run(pk=7).return_value is False
        with held_elsewhere(NAME):
            result = run(7)
            assert run(8).return_value is False, "another invoice is another lock"
        if function is askip:
            assert (result.status, result.return_value) == ("SUCCESSFUL", None)
        else:
            assert result.status == "FAILED"
            assert result.errors[0].exception_class_path == "django_distlock.exceptions.LockNotAcquired"
        assert is_free(NAME)
