"""A result whose work would be done after the release is refused: where it is decorated if that can be seen, else by
the call."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from django_distlock import advisory_lock, lock_all, row_lock, semaphore, table_lock
from tests.data.app.models import Account
from tests.locks.elsewhere import is_free

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

NAME = "decorators:unfinished"
RECIPES: dict[str, Any] = {
    "advisory_lock": advisory_lock(NAME, using="memory"),
    "lock_all": lock_all([NAME], using="memory"),
    "semaphore": semaphore(NAME, 1, using="memory"),
    "row_lock": row_lock(Account.objects.all(), using="default"),
    "table_lock": table_lock(Account, using="default"),
}
LOCK = RECIPES["advisory_lock"]


def numbers() -> Iterator[int]:
    yield 1


async def anumbers() -> AsyncIterator[int]:
    yield 1


def wrapped(generator: Callable[..., Any]) -> Callable[..., Any]:
    """What a decorator with functools.wraps makes of it."""
    return functools.wraps(generator)(lambda *args: generator(*args))


UNFINISHED: dict[str, Callable[[], Any]] = {
    "generator": wrapped(numbers),
    "async generator": wrapped(anumbers),
    "generator expression": lambda: (number for number in [1]),
    "context manager": contextlib.contextmanager(numbers),
    "partial of a context manager": functools.partial(contextlib.contextmanager(numbers)),
    "async context manager": contextlib.asynccontextmanager(anumbers),
    "map": lambda: map(str, [1]),
    "chain": lambda: itertools.chain([1]),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_r7_every_kind_of_lock_refuses_by_the_call(databases: None, recipe: Any) -> None:
    with pytest.raises(TypeError, match=r" returned a generator.* which would run after the lock is released"):
        recipe(UNFINISHED["generator"])()
    assert is_free(NAME)
    assert not connections["default"].in_atomic_block


@pytest.mark.parametrize("kind", UNFINISHED)
def test_r7_unfinished_result_is_refused_by_the_call_and_leaves_nothing_held(kind: str) -> None:
    async def function() -> Any:
        return UNFINISHED[kind]()

    for call in (LOCK(UNFINISHED[kind]), async_to_sync(LOCK(function))):
        with pytest.raises(TypeError, match=r" returned a \w.* which would run after the lock is released\. Use `wi"):
            call()
        assert is_free(NAME)


def test_generator_that_has_begun_is_closed_while_the_lock_is_held() -> None:
    closed: list[bool] = []

    def begun() -> Iterator[int]:
        try:
            yield 1
        finally:
            closed.append(not is_free(NAME))

    def function() -> Iterator[int]:
        steps = begun()
        next(steps)
        return steps

    with pytest.raises(TypeError, match="returned a generator") as refused:
        LOCK(function)()
    assert closed == [True]
    del refused


def test_awaitable_of_a_plain_function_is_refused() -> None:
    """Nothing would hold the lock while it runs; the coroutine is closed."""

    async def function() -> None: ...

    with pytest.raises(TypeError, match=r"lambda> returned an awaitable, which would .* Make it an `async def`, or m"):
        LOCK(lambda: function())()
    assert is_free(NAME)


def test_what_is_finished_or_only_looks_like_a_generator_passes() -> None:
    """Also a wrapper that reads the generator to its end, with functools.wraps."""
    made = [1], iter([1]), Account.objects.all(), contextlib.ExitStack(), transaction.atomic(), HttpResponse(numbers())
    for result in made:
        assert LOCK(lambda result=result: result)() is result
    assert LOCK(functools.wraps(numbers)(lambda: [is_free(NAME) for _ in numbers()]))() == [False]


# views

sent: list[str] = []


class Held(io.BytesIO):
    """A file that says when it is closed."""

    def close(self) -> None:
        sent.append("closed")
        super().close()


def rows() -> Iterator[bytes]:
    sent.append("sent")
    yield b"row"


def stream(request: HttpRequest) -> StreamingHttpResponse:
    Account.objects.create(owner=NAME)
    return StreamingHttpResponse(rows())


def file(request: HttpRequest) -> FileResponse:
    Account.objects.create(owner=NAME)
    return FileResponse(Held(b"file"))


async def astream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(rows())


SHAPES = {
    "stream": LOCK(stream),
    "file": LOCK(file),
    "table": RECIPES["table_lock"](stream),
    "async": LOCK(astream),
}
urlpatterns = [path(f"{shape}/", view) for shape, view in SHAPES.items()]


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("shape", SHAPES)
def test_r12_streamed_response_is_refused_and_what_the_view_wrote_is_rolled_back(
    databases: None, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """The refusal comes inside the transaction of the request."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", shape != "async")
    sent.clear()
    get: Any = async_to_sync(AsyncClient().get) if shape == "async" else Client().get
    with pytest.raises(TypeError, match=r"returned a \w+Response, whose content would be sent after the lock is rel"):
        get(f"/{shape}/")
    assert sent == (["closed"] if shape == "file" else [])
    assert is_free(NAME)
    assert not Account.objects.filter(owner=NAME).exists()
