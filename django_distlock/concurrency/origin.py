"""Who asks for a lock, as an operator wants to read it: the thread or the task, and the address that it serves."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextvars import Token

# Characters of an address that are told.
LONGEST = 100
# Any other is the client's own words, which an operator could take for the holder's.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})

_address: ContextVar[str] = ContextVar("django_distlock_address", default="")


class serving:
    """While the block runs, ``request`` is what is served. None changes nothing.

    Told is the route, ``POST /reset/<token>/``, and never the path, whose arguments may be secrets.
    """

    __slots__ = ("_request", "_token")

    def __init__(self, request: Any) -> None:
        self._request = request
        self._token: Token[str] | None = None

    def __enter__(self) -> None:
        route = getattr(getattr(self._request, "resolver_match", None), "route", None)
        if route is not None:
            method = self._request.method if self._request.method in _METHODS else "?"
            self._token = _address.set(f"{method} /{route.removeprefix('^')}"[:LONGEST])

    def __exit__(self, *error: object) -> None:
        if self._token is not None:
            # the garbage collector ends a coroutine in whatever context
            with suppress(ValueError):
                _address.reset(self._token)


def request_of_rest(args: tuple[Any, ...]) -> Any:
    """The request of a handler of Django REST framework, which is no HttpRequest. Nobody has one without the import."""
    kind: Any = getattr(sys.modules.get("rest_framework.request"), "Request", None)
    if kind is not None:
        for argument in args[:2]:
            if isinstance(argument, kind):
                return argument
    return None


# What is served here and now; empty if that is not known. No function of our own: it is asked at each acquire.
address = _address.get


def of(owner: object, address: str) -> str:
    """A thread or a task, and what it serves."""
    if isinstance(owner, asyncio.Task):
        who = f"{owner.get_name()} ({getattr(owner.get_coro(), '__qualname__', 'task')})"
    else:
        who = getattr(owner, "name", "")
    return f"{who}, {address}" if address else who


def asker() -> str:
    """The thread or the task that runs this, and what it serves."""
    # asyncio.current_task() would raise and catch an error where no event loop runs
    task = None if asyncio._get_running_loop() is None else asyncio.current_task()
    return of(task or threading.current_thread(), _address.get())
