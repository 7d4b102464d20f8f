"""A result whose work would be done after the release is refused: where it is decorated if that can be seen, else by
the call."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import itertools
import types
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

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
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
LOCK = RECIPES["advisory_lock"]


def numbers() -> Iterator[int]:
    yield 1


async def anumbers() -> AsyncIterator[int]:
    yield 1


def wrapped(generator: Callable[..., Any]) -> Callable[..., Any]:
    """What a decorator with functools.wraps makes of it."""

    @functools.wraps(generator)
    def inner(*args: Any) -> Any:
        return generator(*args)

    return inner


@every_recipe
@pytest.mark.parametrize("kind", [contextlib.contextmanager, contextlib.asynccontextmanager])
@pytest.mark.parametrize("shape", [lambda made: made, functools.partial], ids=["bare", "partial"])
def test_context_manager_is_refused_where_it_is_decorated(recipe: Any, kind: Any, shape: Any) -> None:
    made = kind(numbers if kind is contextlib.contextmanager else anumbers)
    with pytest.raises(TypeError, match=r"makes a context manager: it would run after the lock is .* Use `with` ins"):
        recipe(shape(made))


UNFINISHED: dict[str, Callable[[], Any]] = {
    "generator": wrapped(numbers),
    "async generator": wrapped(anumbers),
    "generator expression": lambda: (number for number in [1]),
    "context manager": wrapped(contextlib.contextmanager(numbers)),
    "async context manager": wrapped(contextlib.asynccontextmanager(anumbers)),
    "map": lambda: map(str, [1]),
    "filter": lambda: filter(None, [1]),
    "zip": lambda: zip([1], [2], strict=True),
    "chain": lambda: itertools.chain([1]),
}


@every_recipe
@pytest.mark.parametrize("kind", UNFINISHED)
def test_r7_unfinished_result_is_refused_by_the_call_and_leaves_nothing_held(
    databases: None, recipe: Any, kind: str
) -> None:
    with pytest.raises(TypeError, match=r" returned a \w.* which would run after the lock is released\. Use `with`"):
        recipe(UNFINISHED[kind])()
    assert is_free(NAME)
    assert not connections["default"].in_atomic_block


@pytest.mark.parametrize("kind", UNFINISHED)
def test_unfinished_result_of_an_async_def_is_refused(kind: str) -> None:
    async def function() -> Any:
        return UNFINISHED[kind]()

    with pytest.raises(TypeError, match=r"function returned a \w.* which would run after the lock is released"):
        asyncio.run(LOCK(function)())
    with pytest.raises(TypeError, match=r"lambda> returned a \w.* which would run after the lock is released"):
        asyncio.run(LOCK(lambda: function())())
    assert is_free(NAME)


def test_generator_that_has_begun_is_closed() -> None:
    closed: list[str] = []

    def begun() -> Iterator[int]:
        try:
            yield 1
        finally:
            closed.append("while held" if not is_free(NAME) else "after the release")

    def function() -> Iterator[int]:
        steps = begun()
        next(steps)
        return steps

    with pytest.raises(TypeError, match="returned a generator") as refused:
        LOCK(function)()
    assert closed == ["while held"]
    del refused


@types.coroutine
def old_coroutine() -> Iterator[Any]:
    return "awaited"
    yield


@pytest.mark.parametrize(
    "make",
    [
        lambda: [1],
        lambda: iter([1]),
        lambda: reversed([1]),
        lambda: Account.objects.all(),
        lambda: io.StringIO(),
        lambda: contextlib.ExitStack(),
        lambda: transaction.atomic(),
        lambda: HttpResponse(numbers()),
        wrapped(lambda: [1]),
    ],
)
def test_what_is_finished_or_cannot_be_told_passes(make: Any) -> None:
    assert type(LOCK(make)()) is type(make())


def test_wrapper_that_reads_the_generator_to_its_end_passes() -> None:
    """With functools.wraps it looks like a generator function, and is none."""

    @LOCK
    @functools.wraps(numbers)
    def collected() -> list[bool]:
        return [is_free(NAME) for _ in numbers()]

    assert collected() == [False]


def test_old_coroutine_is_awaited() -> None:
    async def call() -> Any:
        return await LOCK(wrapped(old_coroutine))()

    assert asyncio.run(LOCK(wrapped(old_coroutine))()) == "awaited"


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


async def arows() -> AsyncIterator[bytes]:
    sent.append("sent")
    yield b"row"


def stream(request: HttpRequest) -> StreamingHttpResponse:
    Account.objects.create(owner=NAME)
    return StreamingHttpResponse(rows())


def file(request: HttpRequest) -> FileResponse:
    Account.objects.create(owner=NAME)
    return FileResponse(Held(b"file"))


async def astream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(arows())


@method_decorator(LOCK, name="dispatch")
class Streaming(View):
    def get(self, request: HttpRequest) -> StreamingHttpResponse:
        return stream(request)


@method_decorator(LOCK, name="dispatch")
class AsyncStreaming(View):
    async def get(self, request: HttpRequest) -> StreamingHttpResponse:
        return await astream(request)


def locked_rows() -> Iterator[bytes]:
    """What the error advises."""
    with advisory_lock(NAME, using="memory", timeout=0):
        yield b""
        yield b"free" if is_free(NAME) else b"held"


def advised(request: HttpRequest) -> StreamingHttpResponse:
    body = locked_rows()
    next(body)
    return StreamingHttpResponse(body)


urlpatterns = [
    path("stream/", LOCK(stream)),
    path("file/", LOCK(file)),
    path("table/", RECIPES["table_lock"](stream)),
    path("class/", Streaming.as_view()),
    path("async/", LOCK(astream)),
    path("async_class/", AsyncStreaming.as_view()),
    path("advised/", advised),
]


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("shape", ["stream", "file", "table", "class"])
def test_streamed_response_is_refused_and_what_the_view_wrote_is_rolled_back(
    databases: None, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """R12: the refusal comes inside the transaction of the request."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    sent.clear()
    with pytest.raises(TypeError, match=r"returned a \w+Response, whose content would be sent after the lock is rel"):
        Client().get(f"/{shape}/")
    assert sent == (["closed"] if shape == "file" else [])
    assert is_free(NAME)
    assert not Account.objects.filter(owner=NAME).exists()


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("shape", ["async", "async_class"])
def test_streamed_response_of_an_async_view_is_refused(shape: str) -> None:
    sent.clear()
    with pytest.raises(TypeError, match="returned a StreamingHttpResponse, whose content would be sent"):
        asyncio.run(AsyncClient().get(f"/{shape}/"))
    assert sent == []
    assert is_free(NAME)


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("method", ["get", "head"])
def test_the_advice_holds_the_lock_to_the_end_of_the_stream(method: str) -> None:
    """And frees it if nothing of the stream is read: a HEAD request, a client that goes."""
    response: Any = getattr(Client(), method)("/advised/")
    if method == "get":
        assert not is_free(NAME)
        assert b"".join(response.streaming_content) == b"held"
    response.close()
    assert is_free(NAME)
