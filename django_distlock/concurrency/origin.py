"""The caller of a lock as shown to an operator: its thread or task, and the address that it serves."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextvars import Token

# Longest address that is shown, in characters.
LONGEST = 100
# Another method is text from the client, which could mislead an operator; "?" is shown instead.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})

_address: ContextVar[str] = ContextVar("django_distlock_address", default="")
#: The task for which a thread of a backend calls the engine.
acting_for: ContextVar[asyncio.Task[Any] | None] = ContextVar("django_distlock_acting_for", default=None)


class serving:
    """Note for the length of the block that this context serves ``request``. None changes nothing.

    Only the route is noted, ``POST /reset/<token>/``, never the path, whose arguments may be secret.
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
            # the garbage collector may close a coroutine in another context
            with suppress(ValueError):
                _address.reset(self._token)


def request_of_rest(args: tuple[Any, ...]) -> Any:
    """The Request of a handler of Django REST framework, which is no HttpRequest; None without one.

    Django REST framework is not imported for this: unless it is imported already, there is no such object.
    """
    kind: Any = getattr(sys.modules.get("rest_framework.request"), "Request", None)
    if kind is not None:
        for argument in args[:2]:
            if isinstance(argument, kind):
                return argument
    return None


# The address that this context serves; empty if unknown. Called at each acquire, so it is no function of ours.
address = _address.get


def of(owner: object, address: str) -> str:
    """Describe a thread or a task, and the address that it serves."""
    if isinstance(owner, asyncio.Task):
        who = f"{owner.get_name()} ({getattr(owner.get_coro(), '__qualname__', 'task')})"
    else:
        who = getattr(owner, "name", "")
    return f"{who}, {address}" if address else who


def describe_caller() -> str:
    """Describe the current task, or thread, and the address that it serves."""
    # without an event loop asyncio.current_task() would raise and catch an error, which takes time
    task = None if asyncio._get_running_loop() is None else asyncio.current_task()
    return of(task or acting_for.get() or threading.current_thread(), _address.get())
