"""A decorator above what has registered the function already: the worker or router calls the function without it."""

from __future__ import annotations

import functools
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from faststream.redis import RedisBroker

from django_distlock import advisory_lock, lock_all, row_lock, semaphore, table_lock
from django_distlock.browser import requires_lock
from django_distlock.editing.views import edit_locked
from django_distlock.idempotency import idempotent
from testproject.wallet.models import Account
from tests.locks.elsewhere import is_free
from tests.locks.task import task

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
every_decorator = pytest.mark.parametrize("decorator", DECORATORS.values(), ids=DECORATORS)


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


class Celery(Holder):
    def delay(self, *args: Any) -> None: ...
    def apply_async(self, args: Any = (), **options: Any) -> None: ...


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


class Dramatiq(Holder):
    def send(self, *args: Any) -> None: ...
    def send_with_options(self, args: Any = ()) -> None: ...


class Huey(Holder):
    def schedule(self, args: Any = (), delay: float = 0) -> None: ...
    def call_local(self, *args: Any) -> None: ...


class Procrastinate(Holder):
    def defer(self, **kwargs: Any) -> None: ...
    async def defer_async(self, **kwargs: Any) -> None: ...


class Taskiq(Holder):
    async def kiq(self, *args: Any) -> None: ...


class Sends(Holder):
    def send(self, *args: Any) -> None: ...


class Schedules(Holder):
    def schedule(self, *args: Any) -> None: ...


def rq(function: Any) -> Any:
    """The function itself, with methods."""
    function = functools.wraps(function)(lambda *args: function(*args))
    function.delay = function.enqueue = lambda *args: None
    return function


def ninja(function: Any) -> Any:
    return NinjaAPI(urls_namespace="registered").post("/")(functools.wraps(function)(lambda request: True))


def faststream(function: Any) -> Any:
    async def handle(body: str) -> None: ...

    return RedisBroker().subscriber("registered")(handle)


KINDS = [Celery, Proxy, Dramatiq, Huey, Procrastinate, Taskiq, Sends, Schedules, rq, ninja, faststream, task]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.lower())


@every_decorator
@every_kind
def test_what_is_registered_already_is_refused(kind: Any, decorator: Any) -> None:
    with pytest.raises(TypeError, match="below @shared_task"):
        decorator(kind(send_invoice))


@every_decorator
def test_the_message_says_where_the_decorator_goes(decorator: Any, request: pytest.FixtureRequest) -> None:
    with pytest.raises(TypeError) as refused:
        decorator(Celery(send_invoice))
    name = request.node.callspec.id
    it = "the lock" if "lock" in name or name == "semaphore" else "@idempotent"
    assert str(refused.value) == (
        f"send_invoice is registered already (it has 'delay'): a worker or router calls the function inside, without "
        f"{it}. Put {it} below @shared_task, or below whichever decorator has registered the function."
    )


@every_decorator
def test_it_is_seen_below_another_decorator(decorator: Any) -> None:
    registered = Celery(send_invoice)

    @functools.wraps(registered)
    def between(*args: Any) -> Any:
        return registered(*args)

    with pytest.raises(TypeError, match="below @shared_task"):
        decorator(between)


@every_kind
def test_below_it_the_lock_is_held(kind: Any) -> None:
    """And what is above may be what it likes."""
    made = kind(advisory_lock("x", using="memory")(send_invoice))
    if isinstance(made, Holder):
        assert made() is True


class Job:
    """A callable whose methods only sound alike."""

    send = schedule = "no method"
    delay = 5

    def __call__(self, pk: int) -> bool:
        return not is_free("x")


class Mailer:
    """Sends mail, and holds no function."""

    def send(self) -> None: ...

    def __call__(self, pk: int) -> bool:
        return not is_free("x")


def slow(pk: int) -> bool:
    return not is_free("x")


slow.delay = 5  # type: ignore[attr-defined]

LEGAL = [
    slow,
    Job(),
    Job().__call__,
    Mailer(),
    functools.partial(send_invoice, None),
    functools.lru_cache(slow),
    functools.singledispatch(slow),
    lambda pk: not is_free("x"),
    functools.partial(Celery(send_invoice), None),
]


@pytest.mark.parametrize("function", LEGAL)
def test_other_callables_stay_legal(function: Any) -> None:
    assert advisory_lock("x", using="memory")(function)(7) is True


def test_stand_ins_of_tests_stay_legal() -> None:
    """A mock has every attribute that it is asked for."""
    stand_in = MagicMock(return_value=7)
    assert advisory_lock("x", using="memory")(stand_in)() == 7
    assert idempotent(stand_in) is not stand_in


@pytest.mark.parametrize("send", ["delay", "apply_async"])
def test_sending_may_be_locked(send: str) -> None:
    """The methods are no tasks themselves: the lock is held while the message is sent."""
    assert advisory_lock("x", using="memory")(getattr(Celery(send_invoice), send))() is None


def test_the_function_inside_may_be_locked_again() -> None:
    made = Celery(send_invoice)
    assert advisory_lock("x", using="memory")(made.function)() is True


def test_on_busy_may_be_a_task() -> None:
    busy = Celery(lambda: "later")
    locked = advisory_lock("x", using="memory", timeout=0, on_busy=busy)(lambda: "now")
    assert locked() == "now"
    assert SimpleNamespace(locked=locked).locked() == "now"
