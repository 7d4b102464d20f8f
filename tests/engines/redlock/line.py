"""The waiting line of one lock, as the five nodes keep it, and callers that want the lock."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from django_distlock import BackendUnavailable, LockLost
from django_distlock.backends.cleanup import UNDO_WINDOW
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.support.timing import within

if TYPE_CHECKING:
    from django_distlock.keys import LockKey
    from tests.engines.redlock.nodes import Nodes

# So long may a place in line stay at a node that can be reached; and at one where it arrives late: it is taken back
# again and again, each TICK, until UNDO_WINDOW have passed. Seconds.
SOON, LATE = 0.4, UNDO_WINDOW - 0.5


def _interrupt(thread: int, error: type[BaseException]) -> None:
    """Raise ``error`` in another thread.

    CPython gives it to the wrong thread while that one is starting a third: until it runs, a new thread has the number
    of the thread that starts it. It would die before it says that it runs, and its starter would wait for ever.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10)  # no other thread runs between the look and the exception
    try:
        while _is_starting_another(thread):
            time.sleep(0.001)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
    finally:
        sys.setswitchinterval(interval)


def _is_starting_another(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code is threading.Thread.start.__code__:
            return True
        frame = frame.f_back
    return False


class Line:
    """The lock of the test, as its nodes have it, and callers that want it: threads or tasks."""

    def __init__(self, nodes: Nodes, name: str, key: LockKey, face: str) -> None:
        self.nodes, self.name, self.face = nodes, name, face
        self.stored = f"redlock:{{{key.text}}}"
        self.lead = key.digest[0] % 5
        self.others = [index for index in range(5) if index != self.lead]
        self._pool = ThreadPoolExecutor()

    @property
    def keeper(self) -> Any:
        """The proxy of the node at which they stand."""
        return self.nodes.proxies[self.lead]

    def taken(self, *nodes: int) -> None:
        """Somebody whom nobody knows has it at ``nodes``."""
        for index in nodes or range(5):
            self.nodes.clients[index].set(self.stored, "somebody", px=30_000)

    def free(self) -> None:
        for client in self.nodes.clients:
            if client.get(self.stored) == b"somebody":
                client.delete(self.stored)

    def members(self) -> list[list[bytes]]:
        return [client.zrange(f"{self.stored}:queue", 0, -1) for client in self.nodes.clients]

    def stands(self) -> bool:
        return any(self.members())

    def nobody(self, patience: float = SOON) -> None:
        """Also while somebody else has it: nobody is called then, nor passed over."""
        began = time.monotonic()
        eventually(lambda: not self.stands(), "a ghost stands in line")
        self.free()
        eventually(lambda: self.nodes.keys() == [0] * 5, "a ghost has it")
        within(time.monotonic() - began, 2 * patience, what="a ghost")

    def hold(self, timeout: float, seconds: float = 0.0, **options: Any) -> Any:
        """Take it, and give it back after so long. Too few nodes may answer that in time; what stays is looked for."""
        lock = self.nodes.lock(self.name, timeout=timeout, **options)

        async def task() -> Any:
            self._task = asyncio.current_task(), asyncio.get_running_loop()
            lease = await lock.aacquire()
            with contextlib.suppress(LockLost, BackendUnavailable):
                async with lease:
                    await asyncio.sleep(seconds)
            return lease

        self._thread = threading.get_ident()
        if self.face == "async":
            return asyncio.run(task())
        lease = lock.acquire()
        with contextlib.suppress(LockLost, BackendUnavailable), lease:
            time.sleep(seconds)
        return lease

    def start(self, timeout: float, seconds: float = 0.0, **options: Any) -> Any:
        return self._pool.submit(self.hold, timeout, seconds, **options)

    def deliver(self) -> None:
        """What was detained arrives, and has arrived."""
        before = self.nodes.calls("evalsha")[self.lead]
        for proxy in self.nodes.proxies:
            proxy.deliver()
        eventually(lambda: self.nodes.calls("evalsha")[self.lead] > before, "it does not arrive")

    def cancel(self) -> None:
        """A task is cancelled, a thread interrupted."""
        if self.face == "async":
            task, loop = self._task
            loop.call_soon_threadsafe(task.cancel)
        else:
            _interrupt(self._thread, KeyboardInterrupt)

    def connect(self) -> None:
        """Have connections to all, and one to be called on: a place in line of nobody counts for as long as that."""
        self.nodes.connect(self.name)
        self.taken()
        waiting, keeper = self.start(10), self.nodes.clients[self.lead]
        eventually(lambda: keeper.pubsub_channels("distlock:*"), "it cannot be called")
        self.free()
        waiting.result(10)
        self.nobody()
        self.nodes.quiet()
        registry.entry("five").backend._busy.clear()  # type: ignore[attr-defined]  # whoever comes next asks everybody

    def close(self) -> None:
        self._pool.shutdown()
