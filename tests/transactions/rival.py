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

from django_distlock import advisory_lock
from tests.conftest import PATIENCE
from tests.support.processes import Child
from tests.support.unhurried import give_time
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Callable


class Deeds:
    """What it can be asked to do."""

    def __init__(self, link: Any) -> None:
        self.link, self.leases = link, []

    def is_out(self, using: str, name: str) -> bool:
        """Is the lock refused, without waiting?"""
        lease = advisory_lock(name, using=using).try_acquire()
        if lease is not None:
            lease.release()
        return lease is None

    def wait(self, using: str, name: str, alias: str) -> list[Any]:
        """Say "waiting", wait, and return the time of the grant and the rows of that name that it sees at once."""
        rows.count(alias, name)  # connects, so that this is not counted as waiting
        self.link.say("waiting")
        self.leases.append(advisory_lock(name, using=using, timeout=PATIENCE).acquire())
        return [time.monotonic(), rows.count(alias, name)]

    def release(self) -> None:
        self.leases.pop().release()


def serve(link: Any) -> None:
    """Do what is asked until there is no question any more."""
    deeds = Deeds(link)
    while (question := link.hear()) is not None:
        try:
            link.say(getattr(deeds, question[0])(*question[1:]))
        except Exception as error:
            link.say({"error": repr(error)})
        finally:
            connections.close_all()  # other tests count the sessions of the database


def serve_unhurried(link: Any) -> None:
    """:func:`serve` in a process of its own, with time for the servers."""
    give_time()
    serve(link)


class Rival:
    def __init__(self, say: Callable[[Any], None], answer: Callable[[], Any]) -> None:
        self.say, self.answer = say, answer

    def hear(self) -> Any:
        """What the rival said; AssertionError if it failed."""
        answer = self.answer()
        if isinstance(answer, dict):
            raise AssertionError(f"the rival failed: {answer['error']}")
        return answer

    def do(self, *question: str) -> Any:
        self.say(question)
        return self.hear()

    def wait(self, using: str, name: str, alias: str) -> None:
        assert self.do("wait", using, name, alias) == "waiting"


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
