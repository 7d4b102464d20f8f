"""Somebody else: a process of its own that takes and gives back locks on request.

It is started once for the whole run; each of its locks is held by a context of its own there.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from django.db import connections

from tests.conftest import connect
from tests.contract.actors import PATIENCE, Actor
from tests.support.processes import Child
from tests.support.unhurried import give_time
from tests.transactions import rows


class Office:
    """The other end: what a rival can be asked to do, on its own side."""

    def __init__(self) -> None:
        self.leases: dict[int, tuple[Actor, Any]] = {}
        self._numbers = itertools.count(1)
        self._desist, self._begun = threading.Event(), threading.Event()

    def connect(self, using: str) -> None:
        connect(using)

    def acquire(self, using: str, name: str, timeout: float | None, options: dict[str, Any]) -> int:
        from django_distlock import advisory_lock, semaphore

        recipe = semaphore if "limit" in options else advisory_lock
        actor = Actor()
        try:
            lease = actor.submit(recipe(name, using=using, **options).acquire, timeout=timeout).result()
        except BaseException:
            actor.close()
            raise
        number = next(self._numbers)
        self.leases[number] = actor, lease
        return number

    def release(self, number: int) -> None:
        actor, lease = self.leases.pop(number)
        try:
            actor.submit(lease.release).result()
        finally:
            actor.close()

    def get(self, number: int, what: str) -> Any:
        """``fence``, ``lost``, ... of a lease."""
        return getattr(self.leases[number][1], what)

    def is_out(self, using: str, name: str) -> bool:
        """Is the lock refused, without waiting?"""
        from django_distlock import advisory_lock

        lease = advisory_lock(name, using=using).try_acquire()
        if lease is not None:
            lease.release()
        return lease is None

    def wait(self, using: str, name: str, alias: str) -> list[Any]:
        """Wait for the lock; its number, the time of the grant, and how many rows of that name are seen at once. The
        clock is ``time.monotonic()``, which on Linux is one clock for all processes of the machine."""
        rows.count(alias, name)  # connects, so that this is not counted as waiting
        self._begun.set()
        return [self.acquire(using, name, PATIENCE, {}), time.monotonic(), rows.count(alias, name)]

    def has_begun(self) -> bool:
        """Until :meth:`wait` waits."""
        begun = self._begun.wait(PATIENCE)
        self._begun.clear()
        return begun

    def count(self, using: str, name: str, path: str, rounds: int) -> int:
        """Read a number from a file and write it back one higher, ``rounds`` times, under the lock."""
        from django_distlock import advisory_lock

        file = Path(path)
        for _ in range(rounds):
            with advisory_lock(name, using=using, timeout=PATIENCE):
                file.write_text(str(int(file.read_text() or 0) + 1))
        return rounds

    def sets(self, using: str, names: list[str], rounds: int) -> int:
        """Take all of ``names`` at once, and give them back, ``rounds`` times."""
        from django_distlock import lock_all

        for _ in range(rounds):
            with lock_all(names, using=using, timeout=PATIENCE):
                pass
        return rounds

    def compete(self, using: str, name: str) -> None:
        """Take the lock again and again, until told to desist: it is never free."""
        from django_distlock import advisory_lock

        self._desist.clear()
        while not self._desist.is_set():
            with advisory_lock(name, using=using, timeout=PATIENCE):
                self._desist.wait(0.005)

    def desist(self) -> None:
        self._desist.set()

    def reset(self) -> None:
        self.desist()
        for number in list(self.leases):
            self.release(number)

    def close(self) -> None:
        from django_distlock.manager.registry import registry

        registry.close()


def serve(link: Any) -> None:
    """Run in the child."""
    give_time()
    listen(link)


def listen(link: Any) -> None:
    """Do what is asked, each request in a thread of its own."""
    office = Office()
    mouth = threading.Lock()

    def perform(token: int, verb: str, args: list[Any]) -> None:
        try:
            answer = [token, None, getattr(office, verb)(*args)]
        except Exception as error:
            answer = [token, type(error).__name__, str(error)]
        finally:
            connections.close_all()  # other tests count the sessions of the database
        with mouth:
            link.say(answer)

    while (request := link.hear()) is not None:
        token, verb, *args = request
        threading.Thread(target=perform, args=(token, verb, args), daemon=True).start()


class RivalError(Exception):
    """The rival met an error; ``kind`` is its class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Rival:
    """The near end."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self._tokens = itertools.count(1)
        self._answers: dict[int, tuple[str | None, Any]] = {}

    def start(self, verb: str, *args: Any) -> int:
        """Ask for something; :meth:`result` gives the answer."""
        token = next(self._tokens)
        self.child.say([token, verb, *args])
        return token

    def result(self, token: int, timeout: float = PATIENCE) -> Any:
        while token not in self._answers:
            heard, kind, value = self.child.hear(timeout)
            self._answers[heard] = kind, value
        kind, value = self._answers.pop(token)
        if kind is not None:
            raise RivalError(kind, value)
        return value

    def call(self, verb: str, *args: Any) -> Any:
        return self.result(self.start(verb, *args))

    def acquire(self, using: str, name: str, *, timeout: float | None = PATIENCE, **options: Any) -> int:
        """A lock, or with ``limit`` a semaphore."""
        return self.call("acquire", using, name, timeout, options)  # type: ignore[no-any-return]

    def start_acquire(self, using: str, name: str, **options: Any) -> int:
        return self.start("acquire", using, name, PATIENCE, options)

    def release(self, number: int) -> None:
        self.call("release", number)

    def get(self, number: int, what: str) -> Any:
        return self.call("get", number, what)

    def reset(self) -> None:
        self.call("reset")
        if isinstance(self.child, Child):
            self.call("close")
        self._answers.clear()

    def dismiss(self) -> None:
        """End the process in order."""
        if not self.child.killed:
            self.child.say(None)


def neighbour() -> Rival:
    """Stands in for a rival where locks end at the process: threads of this one."""
    questions, answers = queue.Queue[Any](), queue.Queue[Any]()
    link = SimpleNamespace(say=answers.put, hear=questions.get)
    threading.Thread(target=listen, args=(link,), daemon=True).start()
    here: Any = SimpleNamespace(say=questions.put, hear=lambda timeout: answers.get(timeout=timeout), killed=False)
    return Rival(here)
