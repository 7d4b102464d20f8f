"""Base class of table_lock and row_lock: the ``with`` block, and the decorator of functions, methods and views.

The objects may be module-level constants that many threads use at once, so the open blocks of a thread are kept here
and not on them. Django's transactions belong to a thread, and so do these locks: there is no async twin.
"""

from __future__ import annotations

import functools
import inspect
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from django_distlock.exceptions import LockLost, LockNotHeld
from django_distlock.locks import decorators
from django_distlock.locks.lazy_results import refuse_unfinished
from django_distlock.manager.owner import refuse_trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


_open = threading.local()


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
        self._blocks().append(block)
        return value

    def __exit__(self, *error: Any) -> bool | None:
        if not (blocks := self._blocks()):
            raise LockNotHeld(f"{self!r} was not entered by this thread.")
        return blocks.pop().__exit__(*error)

    def _blocks(self) -> list[AbstractContextManager[T]]:
        """The open ``with`` blocks of this lock in this thread, the innermost last."""
        if not hasattr(_open, "blocks"):
            _open.blocks = WeakKeyDictionary()
        return _open.blocks.setdefault(self, [])  # type: ignore[no-any-return]

    async def __aenter__(self) -> NoReturn:
        refuse_async(self.name)

    async def __aexit__(self, *error: object) -> None:
        """Without it ``async with`` would not call :meth:`__aenter__`, which refuses."""


@contextmanager
def held(connection: Any, lock: Callable[[ExitStack], T]) -> Iterator[T]:
    """Call ``lock``, which takes the lock and enters its transaction, and hold it for the block.

    LockLost if the connection was closed inside the block: Django leaves an ``atomic()`` without an error then, and the
    server has rolled back.
    """
    connection.ensure_connection()  # without a connection autocommit does not show an open transaction
    with ExitStack() as stack:
        value = lock(stack)
        raw = connection.connection
        yield value
        if connection.closed_in_transaction or connection.connection is not raw:
            raise LockLost(
                f"The connection {connection.alias!r} was closed inside the block: the lock is lost, and what the "
                "block wrote is rolled back."
            )


def refuse_async(name: str) -> NoReturn:
    raise TypeError(
        f"{name} is for sync code: Django's transactions are. Put the block into a function and call it with "
        "asgiref.sync.sync_to_async."
    )


def wrap(
    function: F,
    name: str,
    hold: Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[Any]],
    into: str | None = None,
) -> F:
    """Wrap ``function`` so that each call runs inside ``hold(args, kwargs)``; its argument ``into`` gets the value.

    A view under ATOMIC_REQUESTS is called inside the lock and inside the transactions of the request (R12). TypeError
    for what a lock around the call cannot protect, ``async def`` included.
    """
    decorators.refuse(function, name)
    if decorators.is_async(function):
        refuse_async(f"@{name}")

    def run(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if inspect.isawaitable(result):  # it would run after the lock is released
            if inspect.iscoroutine(result):
                result.close()
            refuse_async(f"@{name}")
        return refuse_unfinished(function, result)

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        request = decorators.request_of(args) if innermost else None
        excluded = locked._non_atomic_requests  # type: ignore[attr-defined]
        with hold(args, kwargs) as value:
            more = {} if into is None else {into: value}
            return decorators.call_view(run, request, excluded, *args, **kwargs, **more)

    innermost = decorators.open_no_transaction(locked, function)
    return locked  # type: ignore[return-value]
