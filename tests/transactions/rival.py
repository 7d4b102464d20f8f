"""Somebody else who wants the same lock: a process or a thread with database connections of its own.

Its clock is ``time.monotonic()``, which on Linux is one clock for all processes of the machine.
"""

from __future__ import annotations

import queue
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_distlock import Lease, advisory_lock
from tests.conftest import PATIENCE
from tests.support.processes import Child
from tests.support.unhurried import give_time
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Callable


def serve(link: Any) -> None:
    """Do what is asked until there is no question any more.

    ["try", using, name]           -> "free" or "busy", without waiting
    ["wait", using, name, alias]   -> "waiting", then [time of the grant, rows of that name that it sees at once]
    ["release"]                    -> "released"
    """
    leases: list[Lease] = []
    while (question := link.hear()) is not None:
        try:
            _answer(link, question, leases)
        except Exception as error:
            link.say({"error": repr(error)})
        finally:
            connections.close_all()  # other tests count the sessions of the database


def serve_unhurried(link: Any) -> None:
    """:func:`serve` in a process of its own, with time for the servers."""
    give_time()
    serve(link)


def _answer(link: Any, question: list[str], leases: list[Lease]) -> None:
    match question:
        case ["try", using, name]:
            lease = advisory_lock(name, using=using).try_acquire()
            if lease is not None:
                lease.release()
            link.say("busy" if lease is None else "free")
        case ["wait", using, name, alias]:
            rows.count(alias, name)  # connects, so that this is not counted as waiting
            link.say("waiting")
            leases.append(advisory_lock(name, using=using, timeout=PATIENCE).acquire())
            link.say([time.monotonic(), rows.count(alias, name)])
        case ["release"]:
            leases.pop().release()
            link.say("released")


class Rival:
    def __init__(self, say: Callable[[Any], None], answer: Callable[[], Any]) -> None:
        self.say, self.answer = say, answer

    def hear(self) -> Any:
        """What the rival said; AssertionError if it failed."""
        answer = self.answer()
        if isinstance(answer, dict):
            raise AssertionError(f"the rival failed: {answer['error']}")
        return answer

    def is_out(self, using: str, name: str) -> bool:
        """Is the lock refused to the rival?"""
        self.say(["try", using, name])
        return {"busy": True, "free": False}[self.hear()]

    def wait(self, using: str, name: str, alias: str) -> None:
        self.say(["wait", using, name, alias])
        assert self.hear() == "waiting"

    def release(self) -> None:
        self.say(["release"])
        assert self.hear() == "released"


class ProcessRival(Rival):
    def __init__(self) -> None:
        self.child = Child(serve_unhurried)
        super().__init__(self.child.say, self.child.hear)

    def stop(self) -> None:
        with self.child as child:
            child.say(None)


class ThreadRival(Rival):
    def __init__(self) -> None:
        questions, answers = queue.Queue[Any](), queue.Queue[Any]()
        super().__init__(questions.put, lambda: answers.get(timeout=2 * PATIENCE))
        link = SimpleNamespace(say=answers.put, hear=questions.get)
        self._thread = threading.Thread(target=serve, args=(link,), name="rival")
        self._thread.start()

    def stop(self) -> None:
        self.say(None)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
