"""Results that a decorator refuses: generators and the like, whose code would run after the lock is released."""

from __future__ import annotations

import contextlib
import itertools
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar

from django.http import StreamingHttpResponse

from django_distlock.validation import qualified_name

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

_MANAGERS = (contextlib._GeneratorContextManager, contextlib._AsyncGeneratorContextManager)
# Not iter(a_list): its items exist already. Not a QuerySet: many functions return one that is never evaluated.
_ITERATORS = (map, filter, zip, enumerate, *(kind for kind in vars(itertools).values() if isinstance(kind, type)))
# The exact type is looked up, which adds next to nothing to the cost of a call.
_UNFINISHED = frozenset({GeneratorType, AsyncGeneratorType, *_MANAGERS, *_ITERATORS})


def refuse_unfinished(function: Callable[..., Any], result: R) -> R:
    """Return ``result``. If its code has yet to run, close it and raise TypeError, which says what to do."""
    if type(result) not in _UNFINISHED and not isinstance(result, StreamingHttpResponse):
        return result
    _close(result)
    kind, name = type(result).__name__, qualified_name(function)
    if isinstance(result, StreamingHttpResponse):
        raise TypeError(
            f"{name} returned a {kind}, whose content would be sent after the lock is released. Take the lock with "
            "`with` in the generator that makes the content, or lock a function that only prepares it."
        )
    kind = "context manager" if isinstance(result, _MANAGERS) else kind
    raise TypeError(
        f"{name} returned a {kind}, which would run after the lock is released. Use `with` inside it, or return a list."
    )


def _close(result: Any) -> None:
    """Close ``result``. An asynchronous generator is left to its event loop, which closes it once it is dropped."""
    for close in getattr(result, "_resource_closers", ()):  # a response; its close() would end the request for Django
        close()
    steps = getattr(result, "gen", result)  # that of a context manager
    if isinstance(steps, GeneratorType):
        steps.close()
