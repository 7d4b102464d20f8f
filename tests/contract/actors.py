"""Execution contexts under a test's control, with one face for threads and for tasks.

An actor is one context: everything it does happens in one thread, or in one asyncio task. ``me.acquire(lock)`` is
``lock.acquire()`` in the one and ``await lock.aacquire()`` in the other, so a rule is written down once.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.conftest import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Actor:
    """One execution context: a thread."""

    def __init__(self) -> None:
        self._jobs: Any = queue.SimpleQueue()
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
        """Call ``function`` in this context, after all that was submitted before; an awaitable result is awaited."""
        future: Future[Any] = Future()
        self._put((future, lambda: function(*args, **kwargs)))
        return future

    def _put(self, job: Any) -> None:
        self._jobs.put(job)

    def start(self, target: Any, name: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the method of that name, or its async twin."""
        return self.submit(getattr(target, name), *args, **kwargs)

    def close(self) -> None:
        """End the context."""
        self._put(None)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "an actor is stuck"

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


class TaskActor(Actor):
    """One execution context: a task of ``loop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._jobs = asyncio.Queue()
        self._ended = asyncio.run_coroutine_threadsafe(self._perform(), loop)

    async def _perform(self) -> None:
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

    def _put(self, job: Any) -> None:
        self.loop.call_soon_threadsafe(self._jobs.put_nowait, job)

    def start(self, target: Any, name: str, *args: Any, **kwargs: Any) -> Future[Any]:
        twin = name.replace("__e", "__ae") if name.startswith("__") else f"a{name}"
        return self.submit(getattr(target, twin), *args, **kwargs)

    def close(self) -> None:
        self._put(None)
        self._ended.result(PATIENCE)


async def turns(count: int = 1) -> None:
    """Let the others of this event loop run, so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


class Face:
    """Makes actors of one kind: ``"sync"`` threads or ``"async"`` tasks of one event loop."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._actors: list[Actor] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def actor(self) -> Actor:
        if self.kind == "async" and self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)
            self._thread.start()
        self._actors.append(Actor() if self._loop is None else TaskActor(self._loop))
        return self._actors[-1]

    def actors(self, count: int) -> list[Actor]:
        return [self.actor() for _ in range(count)]

    def critical(self, lock: Any, inside: Inside, rounds: int) -> Callable[[], Any]:
        """A function for :meth:`Actor.submit`: take ``lock`` and be ``inside``, ``rounds`` times."""
        pause = threading.Event()

        def work() -> None:
            for _ in range(rounds):
                with lock, inside():
                    pause.wait(0.0005)  # lets the others run

        async def awork() -> None:
            for _ in range(rounds):
                async with lock:
                    with inside():
                        await turns(3)

        return work if self.kind == "sync" else awork

    def close(self) -> None:
        for actor in self._actors:
            actor.close()
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._loop.shutdown_default_executor(), self._loop).result(PATIENCE)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE)
            self._loop.close()


class Inside:
    """Counts who is inside at once, and keeps a counter that only survives one at a time."""

    def __init__(self) -> None:
        self.now = self.most = self.counter = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.now += 1
        self.most = max(self.most, self.now)
        seen = self.counter
        yield
        self.counter = seen + 1
        self.now -= 1
