"""Processes that are copies of one scheduler. One is killed, one is put to sleep in the middle of a job.

Spawned: each loads Django anew, on the database that the environment names.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import time
from contextlib import contextmanager
from multiprocessing import connection as pipes
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

SECONDS = 60
SLOT = 0.1  # seconds between two jobs
WORK = 0.01  # seconds that a job takes


class CopyError(Exception):
    """A copy died by itself, or did not do in time what it should."""


class Task(NamedTuple):
    """What a copy is told: `name` is the office, `ttl` None where the alias has no TTL, `began` when slot 0 was."""

    pk: int
    name: str
    using: str
    ttl: float | None
    leads: bool
    fenced: bool
    began: float


class Copy:
    """A copy, in its own process. It says "leads", "late" (its write was refused), "woke" and "error"."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._guard = threading.Lock()
        self._sleepy = threading.Event()

    def say(self, word: str, detail: str = "") -> None:
        with self._guard:
            self._pipe.send((word, detail))

    def stand(self, task: Task) -> None:
        from django_distlock import Leader

        if not task.leads:
            stop = threading.Event()
            thread = threading.Thread(target=self._run_until, args=(task, lambda pause: not stop.wait(pause)))
            thread.start()
            self._obey()
            stop.set()
            thread.join()
            return

        def lead(term: Any) -> None:
            self.say("leads")
            self._run_until(task, term.wait, term)

        ttl = {} if task.ttl is None else {"ttl": task.ttl}
        with Leader(task.name, using=task.using, on_elected=lead, **ttl):
            self._obey()

    def _obey(self) -> None:
        while self._pipe.recv() == "sleep":
            self._sleepy.set()

    def _work(self, term: Any) -> None:
        time.sleep(WORK)
        if self._sleepy.is_set():
            self._sleepy.clear()
            renewed(term)
            # to this very thread: another one might take it later, and this one would write before it sleeps
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            self.say("woke")

    def _run_until(self, task: Task, wait: Callable[[float], bool], term: Any = None) -> None:
        """Look what is due, again and again, for as long as `wait(seconds)` says so."""
        from django.db import connection

        from django_distlock import LockLost

        from .jobs import run_next, run_next_fenced

        job = functools.partial(self._work, term)
        try:
            while wait(SLOT / 5):
                due = int((time.monotonic() - task.began) / SLOT)
                if task.fenced:
                    run_next_fenced(task.pk, due, job, term.fence)
                else:
                    run_next(task.pk, due, job)
        except LockLost as error:
            self.say("late", str(error))
        except Exception as error:
            self.say("error", f"{type(error).__name__}: {error}")
        finally:
            connection.close()


def renewed(term: Any) -> None:
    """Wait until the lease has just been renewed. A process that is stopped in the middle of a renewal may hold the
    write lock of an SQLite file, and keep everybody out of it for as long as it sleeps."""
    before = term.valid_until
    while before is not None and term.valid_until == before and term.leading:
        time.sleep(0.001)


def work(pipe: Connection) -> None:
    """Load Django, do the task, say that it is done."""
    import django

    django.setup()
    pipe.send(("ready", ""))
    copy = Copy(pipe)
    copy.stand(Task(*pipe.recv()))
    copy.say("done")


class Copies:
    """Running copies, seen from the replay. `now` is when the last thing that was waited for was heard of."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self._heard: list[tuple[int, str, str]] = []
        self._ended: set[int] = set()
        self.now = time.monotonic()
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def tell(self, number: int, what: object) -> None:
        self.pipes[number].send(what)

    def wait_for(self, word: str, number: int | None = None) -> tuple[int, str]:
        """The first one that says it, or until ``number`` does; its number and the detail."""
        deadline = time.monotonic() + SECONDS
        while True:
            for heard in self._heard:
                if heard[1] == "error":
                    raise CopyError(heard[2])
                if heard[1] == word and number in (None, heard[0]):
                    self._heard.remove(heard)
                    return heard[0], heard[2]
            if number in self._ended:
                raise CopyError("A copy died.")
            self._listen(word, deadline)

    def check(self) -> None:
        """CopyError if one has said that something went wrong."""
        while self._hear(0):
            pass
        for _, word, detail in self._heard:
            if word == "error":
                raise CopyError(detail)

    def _listen(self, word: str, deadline: float) -> None:
        if not self._hear(max(0.0, deadline - time.monotonic())):
            raise CopyError(f"No copy said {word!r} within {SECONDS} s.")

    def _hear(self, seconds: float) -> bool:
        """Note what is said within that time; False if nothing is."""
        open_pipes = [pipe for number, pipe in enumerate(self.pipes) if number not in self._ended]
        ready = pipes.wait(open_pipes, seconds) if open_pipes else []
        for pipe in ready:
            number = self.pipes.index(pipe)  # type: ignore[arg-type]
            try:
                self._heard.append((number, *self.pipes[number].recv()))
            except (EOFError, ConnectionResetError):
                self._ended.add(number)
            self.now = time.monotonic()
        return bool(ready)

    def kill(self, number: int) -> float:
        """SIGKILL; when."""
        when = time.monotonic()
        self.processes[number].kill()
        self.processes[number].join()
        return when

    def put_to_sleep(self, number: int) -> None:
        """In the middle of its next job; waits until it sleeps."""
        self.tell(number, "sleep")
        pid, deadline = self.processes[number].pid, time.monotonic() + SECONDS
        while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is None:
            if not self.processes[number].is_alive() or time.monotonic() > deadline:
                raise CopyError("The copy that was to fall asleep did not.")
            time.sleep(0.005)

    def wake(self, number: int) -> None:
        os.kill(self.processes[number].pid, signal.SIGCONT)

    def stop(self) -> None:
        """Tell all that are left to end, and wait until they have."""
        left = [number for number, process in enumerate(self.processes) if process.is_alive()]
        for number in left:
            self.tell(number, "stop")
        for number in left:
            self.wait_for("done", number)


@contextmanager
def copies(size: int, task: Task) -> Iterator[Copies]:
    """So many, all at work; ended with the block whatever happened."""
    crew = Copies(size)
    try:
        for number in range(size):
            crew.wait_for("ready", number)
        for number in range(size):
            crew.tell(number, tuple(task._replace(began=time.monotonic())))
        yield crew
    finally:
        for process in crew.processes:
            process.kill()
            process.join()
