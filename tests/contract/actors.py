"""Execution contexts under a test's control, with one face for threads and for tasks.

An actor is one context: everything it does happens in one thread, or in one asyncio task. ``me.acquire(lock)`` is
``lock.acquire()`` in the one and ``await lock.aacquire()`` in the other, so a rule is written down once.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from tests.conftest import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

ASYNC_NAMES = {
    "acquire": "aacquire",
    "try_acquire": "atry_acquire",
    "release": "arelease",
    "extend": "aextend",
    "locked": "alocked",
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
}


class Actor(ABC):
    """One execution context."""

    @abstractmethod
    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Call ``function`` in this context, after all that was submitted before; an awaitable result is awaited."""

    @abstractmethod
    def method(self, target: Any, name: str) -> Callable[..., Any]:
        """``target.name`` as this kind of context calls it."""

    @abstractmethod
    def close(self) -> None:
        """End the context."""

    def start(self, target: Any, name: str, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.submit(self.method(target, name), *args, **kwargs)

    def acquire(self, lock: Any, **kwargs: Any) -> Any:
        return self.start(lock, "acquire", **kwargs).result(PATIENCE)

    def try_acquire(self, lock: Any, **kwargs: Any) -> Any:
        return self.start(lock, "try_acquire", **kwargs).result(PATIENCE)

    def release(self, lease: Any) -> None:
        self.start(lease, "release").result(PATIENCE)

    def extend(self, lease: Any, ttl: float) -> None:
        self.start(lease, "extend", ttl).result(PATIENCE)

    def enter(self, target: Any) -> Any:
        return self.start(target, "__enter__").result(PATIENCE)

    def exit(self, target: Any, error: BaseException | None = None) -> Any:
        return self.start(target, "__exit__", type(error) if error else None, error, None).result(PATIENCE)


class ThreadActor(Actor):
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="actor", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            del job, future, call

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.put((future, lambda: function(*args, **kwargs)))
        return future

    def method(self, target: Any, name: str) -> Callable[..., Any]:
        return getattr(target, name)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._jobs.put(None)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "an actor is stuck"


class TaskActor(Actor):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._jobs: asyncio.Queue[tuple[Future[Any], Callable[[], Any]] | None] = asyncio.Queue()
        self._ended = asyncio.run_coroutine_threadsafe(self._work(), loop)

    async def _work(self) -> None:
        while (job := await self._jobs.get()) is not None:
            future, call = job
            try:
                result = call()
                future.set_result(await result if inspect.isawaitable(result) else result)
            except asyncio.CancelledError as error:
                future.set_exception(error)
                raise
            except BaseException as error:
                future.set_exception(error)
            del job, future, call

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.loop.call_soon_threadsafe(self._jobs.put_nowait, (future, lambda: function(*args, **kwargs)))
        return future

    def method(self, target: Any, name: str) -> Callable[..., Any]:
        return getattr(target, ASYNC_NAMES[name])  # type: ignore[no-any-return]

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._jobs.put_nowait, None)
        self._ended.result(PATIENCE)


async def turns(count: int = 1) -> None:
    """Let the others of this event loop run, so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


class LoopThread:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self._thread.start()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.loop.shutdown_default_executor(), self.loop).result(PATIENCE)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


class Face:
    """Makes actors of one kind: ``"sync"`` threads or ``"async"`` tasks of one event loop."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._loop: LoopThread | None = None
        self._actors: list[Actor] = []

    def actor(self) -> Actor:
        actor: Actor
        if self.kind == "sync":
            actor = ThreadActor()
        else:
            self._loop = self._loop or LoopThread()
            actor = TaskActor(self._loop.loop)
        self._actors.append(actor)
        return actor

    def actors(self, count: int) -> list[Actor]:
        return [self.actor() for _ in range(count)]

    def critical(self, lock: Any, inside: Any, rounds: int) -> Callable[[], Any]:
        """A function for :meth:`Actor.submit`: take ``lock`` and be ``inside``, ``rounds`` times."""
        return _critical_thread(lock, inside, rounds) if self.kind == "sync" else _critical_task(lock, inside, rounds)

    def close(self) -> None:
        for actor in self._actors:
            actor.close()
        if self._loop is not None:
            self._loop.close()


class Inside:
    """Counts who is inside at once, and keeps a counter that only survives one at a time."""

    def __init__(self) -> None:
        self.now = self.most = self.counter = 0

    def enter(self) -> int:
        self.now += 1
        self.most = max(self.most, self.now)
        return self.counter

    def leave(self, seen: int) -> None:
        self.counter = seen + 1
        self.now -= 1


def _critical_thread(lock: Any, inside: Inside, rounds: int) -> Callable[[], None]:
    pause = threading.Event()

    def work() -> None:
        for _ in range(rounds):
            lease = lock.acquire()
            seen = inside.enter()
            pause.wait(0.0005)  # lets the others run
            inside.leave(seen)
            lease.release()

    return work


def _critical_task(lock: Any, inside: Inside, rounds: int) -> Callable[[], Any]:
    async def work() -> None:
        for _ in range(rounds):
            lease = await lock.aacquire()
            seen = inside.enter()
            await turns(3)
            inside.leave(seen)
            await lease.arelease()

    return work
