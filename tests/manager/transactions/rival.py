"""Somebody else who wants the same lock: a process or a thread with database connections of its own.

Its clock is ``time.monotonic()``, which on Linux is one clock for all processes of the machine.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from django.db import connections

from django_distlock import Lease, advisory_lock
from tests.manager.transactions import rows
from tests.support.processes import Child
from tests.support.unhurried import give_time

# How long a rival waits for the lock; seconds.
PATIENCE = 10.0


def serve(link: Any) -> None:
    """Do what is asked until there is no question any more.

    ["try", using, name]           -> "free" or "busy", without waiting
    ["wait", using, name, alias]   -> "waiting", then [time of the grant, rows of that name that it sees at once]
    ["release"]                    -> "released"
    """
    leases: list[Lease] = []
    while True:
        question = link.hear()
        if question is None:
            return
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


class ProcessRival:
    kind = "process"

    def __init__(self) -> None:
        self.child = Child(serve_unhurried)

    def say(self, value: Any) -> None:
        self.child.say(value)

    def hear(self) -> Any:
        return told(self.child.hear())

    def stop(self) -> None:
        with self.child as child:
            child.say(None)


class ThreadRival:
    kind = "thread"

    def __init__(self) -> None:
        self._questions: queue.Queue[Any] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._serve, name="rival")
        self._thread.start()

    def _serve(self) -> None:
        questions, answers = self._questions, self._answers

        class Ends:
            @staticmethod
            def say(value: Any = None) -> None:
                answers.put(value)

            @staticmethod
            def hear() -> Any:
                return questions.get()

        try:
            serve(Ends)
        finally:
            connections.close_all()

    def say(self, value: Any) -> None:
        self._questions.put(value)

    def hear(self) -> Any:
        return told(self._answers.get(timeout=2 * PATIENCE))

    def stop(self) -> None:
        self._questions.put(None)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


Rival = ProcessRival | ThreadRival


def told(answer: Any) -> Any:
    """What the rival said; AssertionError if it failed."""
    if isinstance(answer, dict):
        raise AssertionError(f"the rival failed: {answer['error']}")
    return answer


def is_out(rival: Rival, using: str, name: str) -> bool:
    """Is the lock refused to the rival?"""
    rival.say(["try", using, name])
    answer = rival.hear()
    assert answer in ("busy", "free")
    return bool(answer == "busy")


def start_waiting(rival: Rival, using: str, name: str, alias: str) -> None:
    rival.say(["wait", using, name, alias])
    assert rival.hear() == "waiting"


def release(rival: Rival) -> None:
    rival.say(["release"])
    assert rival.hear() == "released"
