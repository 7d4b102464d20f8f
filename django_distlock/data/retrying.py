"""``retrying``: run a whole transaction again after a deadlock or a serialization failure."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
import time
from contextlib import ExitStack, asynccontextmanager, contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from django_distlock.concurrency.flow import finished, uninterrupted
from django_distlock.data.errors import may_succeed_again
from django_distlock.locks.decorators import is_async
from django_distlock.manager.open_transactions import in_transaction
from django_distlock.validation import check_names, count

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import TracebackType
    from typing import TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

# Seconds: the longest pause after the first attempt, doubled with each one, and the longest of all.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0


class retrying:
    """Run a transaction again that the database has ended for the sake of another one.

    ``@retrying(attempts=5)`` decorates a function or an ``async def``: each call of it runs in a new
    ``transaction.atomic()`` of the database ``using``. The same for a block::

        for attempt in retrying(attempts=5):     # or: async for
            with attempt:                        # async with
                ...

    It is run again after a deadlock or a serialization failure: PostgreSQL's 40P01 and 40001, MySQL's and MariaDB's
    1213, 1205 and 1020, SQLite's SQLITE_BUSY_SNAPSHOT, and what row_lock and table_lock make of these. Before that it
    waits for a random time: up to 50 ms after the first attempt, then up to 100 ms and so on, never more than a second.
    The error of the last attempt is raised, and every other error at once.

    An error of the COMMIT itself ends a loop, because Python does not tell whether the block was left by ``return``;
    the decorator runs the function again. Nothing may follow the ``with`` in the loop. An async attempt has a thread,
    and so a connection, of its own.

    Raises TransactionManagementError inside ``atomic()``, where the server has ended the outer transaction as well.
    """

    def __init__(self, attempts: int = 5, *, using: str = DEFAULT_DB_ALIAS) -> None:
        self.attempts = count("attempts", attempts)
        check_names(using=using)
        self.using = using

    def __call__(self, function: F) -> F:
        if not callable(function) or inspect.isclass(function):
            raise TypeError("@retrying() decorates a function or an async def.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("@retrying() cannot run a generator again: it may have given some values already.")
        wrapper = self._wrap_async(function) if is_async(function) else self._wrap(function)
        return functools.wraps(function)(wrapper)  # type: ignore[return-value]

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            for attempt in self:
                with attempt.repeated(), _transaction(self.using, attempt.note_commit):
                    return _refuse_awaitable(function(*args, **kwargs))
            raise AssertionError("the last attempt raises its error")

        return run

    def _wrap_async(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            async for attempt in self:
                with attempt.repeated():
                    async with _transaction_of_a_thread(self.using, attempt.note_commit):
                        return await function(*args, **kwargs)
            raise AssertionError("the last attempt raises its error")

        return run

    def __iter__(self) -> Iterator[Attempt]:
        for number in range(1, self.attempts + 1):
            with (attempt := Attempt(self.using, last=number == self.attempts)).expected_to_run():
                yield attempt
            if not attempt.failed:
                return
            time.sleep(_pause(number))

    async def __aiter__(self) -> AsyncIterator[Attempt]:
        for number in range(1, self.attempts + 1):
            with (attempt := Attempt(self.using, last=number == self.attempts)).expected_to_run():
                yield attempt
            if not attempt.failed:
                return
            await asyncio.sleep(_pause(number))


class Attempt:
    """One run of a block: ``with attempt:`` or ``async with attempt:``, once."""

    def __init__(self, using: str, *, last: bool) -> None:
        self._using, self._last = using, last
        self._begun = self._committed = False
        self._block: Any = None
        #: Is the block to be run again?
        self.failed = False

    @contextmanager
    def expected_to_run(self) -> Iterator[None]:
        """Refuse a loop that does not run the attempt, or is left after an attempt that failed."""
        try:
            yield
        except GeneratorExit:
            if self.failed:
                raise RuntimeError(
                    "The loop over retrying() was left after an attempt that failed, and its error is lost: nothing "
                    "may follow `with attempt:` in the loop."
                ) from None
            raise
        if not self._begun:
            raise TypeError("The loop over retrying() needs `with attempt:`, or `async with attempt:`.")

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Around the whole transaction, its commit included."""
        self._begun = True
        try:
            yield
        except Exception as error:
            if not self._is_run_again(error):
                raise

    def note_commit(self) -> None:
        """What a hook of ``on_commit()`` raises after that is no reason to run the function again."""
        self._committed = True

    def __enter__(self) -> None:
        self._begun, self._block = True, _transaction(self._using)
        self._block.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        self._block.__exit__(kind, error, at)
        return self._is_run_again(error)

    async def __aenter__(self) -> None:
        self._begun, self._block = True, _transaction_of_a_thread(self._using)
        await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool:
        await self._block.__aexit__(kind, error, at)
        return self._is_run_again(error)

    def _is_run_again(self, error: BaseException | None) -> bool:
        self.failed = error is not None and not (self._last or self._committed) and may_succeed_again(error)
        return self.failed


@contextmanager
def _transaction(using: str, on_commit: Callable[[], None] | None = None) -> Iterator[None]:
    """A new transaction; TransactionManagementError inside another one. That of a TestCase does not count."""
    _refuse_inside(using)
    with transaction.atomic(using, durable=True):
        if on_commit is not None:
            transaction.on_commit(on_commit, using)  # the first hook of all
        yield


def _refuse_inside(using: str) -> None:
    connection: Any = connections[using]
    connection.ensure_connection()  # without a connection autocommit does not show an open transaction
    blocks = connection.atomic_blocks
    if in_transaction(connection) and not (blocks and blocks[-1]._from_testcase):
        raise transaction.TransactionManagementError(
            f"retrying() runs a whole transaction again, and one is open on the database {using!r}: put retrying() "
            "around atomic(). A view under ATOMIC_REQUESTS needs @transaction.non_atomic_requests as well."
        )


@asynccontextmanager
async def _transaction_of_a_thread(using: str, on_commit: Callable[[], None] | None = None) -> AsyncIterator[None]:
    """As :func:`_transaction`, in a thread for the ORM calls of this task alone: other tasks, which share one, would
    run theirs inside the transaction. Below ``async_to_sync`` there is no other thread than that of its caller."""
    await sync_to_async(_refuse_inside)(using)
    shared = await sync_to_async(get_ident)()
    context = ThreadSensitiveContext()
    context.token = SyncToAsync.thread_sensitive_context.set(context)
    stack = ExitStack()  # it knows whether the transaction has begun, even if this task is cancelled meanwhile
    try:
        await sync_to_async(lambda: stack.enter_context(_transaction(using, on_commit)))()
        yield
    except BaseException as error:
        await uninterrupted(sync_to_async(stack.__exit__)(type(error), error, error.__traceback__))
        raise
    else:
        await finished(sync_to_async(stack.__exit__)(None, None, None))
    finally:
        if await sync_to_async(get_ident)() != shared:
            await sync_to_async(connections.close_all)()
        await context.__aexit__(None, None, None)  # type: ignore[no-untyped-call]


def _pause(number: int) -> float:
    """Seconds to wait after the attempt of this number, at random, so that two who met do not meet again."""
    return random.uniform(0, min(FIRST_PAUSE * 2 ** (number - 1), LONGEST_PAUSE))  # noqa: S311 - no secret


def _refuse_awaitable(result: Any) -> Any:
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError("The function under @retrying() has returned an awaitable: decorate the async def itself.")
