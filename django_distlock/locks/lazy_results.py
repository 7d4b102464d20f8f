"""What a decorator must not let pass: a result whose work is done only when the caller reads it, after the release."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar

from django.http import StreamingHttpResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

R = TypeVar("R")

_MANAGERS = (contextlib._GeneratorContextManager, contextlib._AsyncGeneratorContextManager)
# Not iter(a_list): its items are there. Not a QuerySet: too many functions return one that is never read.
_ITERATORS = (map, filter, zip, enumerate, *(kind for kind in vars(itertools).values() if isinstance(kind, type)))
# Looked up by the exact type, which costs the call of a decorated function next to nothing.
_UNFINISHED = frozenset({GeneratorType, AsyncGeneratorType, *_MANAGERS, *_ITERATORS})


def _nothing() -> Iterator[None]:
    yield


# All functions that @contextmanager makes have one and the same code.
_MAKES_MANAGER = {
    contextlib.contextmanager(_nothing).__code__,
    contextlib.asynccontextmanager(_nothing).__code__,  # type: ignore[arg-type]
}


def makes_manager(function: Any) -> bool:
    """Was ``function`` made by ``@contextmanager`` or ``@asynccontextmanager``?

    A function that wraps one, or wraps a generator function, may read it to its end; only its result tells.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__code__", None) in _MAKES_MANAGER


def refuse_unfinished(function: Callable[..., Any], result: R) -> R:
    """``result``, unless its work is yet to be done: then it is closed, and TypeError names the cure."""
    if type(result) not in _UNFINISHED and not isinstance(result, StreamingHttpResponse):
        return result
    if inspect.isawaitable(result):  # @types.coroutine makes generators
        return result
    _close(result)
    kind, name = type(result).__name__, getattr(function, "__qualname__", repr(function))
    if isinstance(result, StreamingHttpResponse):
        raise TypeError(
            f"{name} returned a {kind}, whose content would be sent after the lock is released. Take the lock with "
            "`with` in the generator that makes the content, or lock a function that only prepares it."
        )
    if isinstance(result, _MANAGERS):
        kind = "context manager"
    raise TypeError(
        f"{name} returned a {kind}, which would run after the lock is released. Use `with` inside it, or return a list."
    )


def finished(function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Call ``function`` and refuse a result whose work is yet to be done."""
    return refuse_unfinished(function, function(*args, **kwargs))


def _close(result: Any) -> None:
    """End what has begun. An asynchronous generator is closed by its event loop once it is dropped."""
    for close in getattr(result, "_resource_closers", ()):  # a response; its close() would end the request for Django
        close()
    if isinstance(result, contextlib._GeneratorContextManager):
        result.gen.close()
    elif isinstance(result, GeneratorType):
        result.close()
