"""Base class of table_lock and row_lock: the ``with`` block, and the decorator of functions, methods and views.

The objects may be module-level constants that many threads use at once, so the open blocks of a thread are kept here
and not on them. Django's transactions belong to a thread, and so do these locks: there is no async twin.
"""

from __future__ import annotations

import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from django_distlock.exceptions import LockNotHeld
from django_distlock.locks import decorators
from django_distlock.locks.lazy_results import finished
from django_distlock.manager.owner import refuse_trio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


class _Open(threading.local):
    """The open ``with`` blocks of this thread, innermost last: the lock and its block."""

    def __init__(self) -> None:
        self.blocks: list[tuple[object, AbstractContextManager[Any]]] = []

    def pop(self, lock: object) -> AbstractContextManager[Any]:
        for index in range(len(self.blocks) - 1, -1, -1):
            if self.blocks[index][0] is lock:
                return self.blocks.pop(index)[1]
        raise LockNotHeld(f"{lock!r} was not entered by this thread.")


_open = _Open()


class DataLock(Generic[T]):
    """A lock on data. Subclasses implement :meth:`hold`; ``name`` is the public name."""

    name = "a data lock"

    def hold(self) -> AbstractContextManager[T]:
        """Return a new block that holds the lock."""
        raise NotImplementedError

    def __enter__(self) -> T:
        refuse_trio()
        block = self.hold()
        value = block.__enter__()
        _open.blocks.append((self, block))
        return value

    def __exit__(self, *error: Any) -> bool | None:
        return _open.pop(self).__exit__(*error)

    async def __aenter__(self) -> NoReturn:
        refuse_async(self.name)

    async def __aexit__(self, *error: object) -> None:
        """Without it ``async with`` would not call :meth:`__aenter__`, which refuses."""


def refuse_async(name: str) -> NoReturn:
    raise TypeError(
        f"{name} is for sync code: Django's transactions are. Put the block into a function and call it with "
        "asgiref.sync.sync_to_async."
    )


def wrap(
    function: F,
    name: str,
    hold: Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[Mapping[str, Any]]],
) -> F:
    """Wrap ``function`` so that each call runs inside ``hold(args, kwargs)``, which may give it further arguments.

    A view under ATOMIC_REQUESTS is called inside the lock and inside the transactions of the request (R12). TypeError
    for what a lock around the call cannot protect, ``async def`` included.
    """
    decorators.refuse(function, name)
    if decorators.is_async(function):
        refuse_async(f"@{name}")
    inner = getattr(function, "_non_atomic_requests", ())
    innermost = not isinstance(inner, decorators.LockedView)
    run = functools.partial(finished, function)

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        request = decorators.request_of(args) if innermost else None
        excluded: decorators.LockedView = locked._non_atomic_requests  # type: ignore[attr-defined]
        with hold(args, kwargs) as more:
            result = decorators.call_view(run, request, excluded, *args, **kwargs, **more)
            if inspect.isawaitable(result):  # it would run after the lock is released
                if inspect.iscoroutine(result):
                    result.close()
                refuse_async(f"@{name}")
        return result

    locked._non_atomic_requests = decorators.LockedView(inner)  # type: ignore[attr-defined]
    return locked  # type: ignore[return-value]
