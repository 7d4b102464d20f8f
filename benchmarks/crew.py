"""Worker processes that compete for one lock and check, in shared memory, that it excludes."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import django

from benchmarks import reason
from benchmarks.entries import find

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

PATIENCE = 45.0  # seconds beyond a slice after which a worker counts as stuck
COUNTER, INSIDE = 0, 1  # the two shared 64-bit words


@dataclass
class Share:
    """What one worker saw in one slice; only ``served`` and ``worst_ns`` leave out its lead-in."""

    sections: int
    served: int
    overlaps: int
    worst_ns: int


class Section:
    """Read, check and write shared memory: what must never be done by two processes at once."""

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.me = os.getpid()
        self.entered = self.sections = self.overlaps = 0

    def __call__(self) -> None:
        """Count one section; an update is lost if another process writes between the read and the write."""
        self.entered = time.monotonic_ns()
        words = self.words
        value = words[COUNTER]
        if words[INSIDE]:
            self.overlaps += 1
        words[INSIDE] = self.me
        words[COUNTER] = value + 1
        if words[INSIDE] != self.me:
            self.overlaps += 1
        words[INSIDE] = 0
        self.sections += 1


def compete(cycle: Callable[[Callable[[], object]], None], words: memoryview, begin: int, end: int) -> Share:
    """Take the lock as often as possible until ``end``; count what got it from ``begin`` on, in monotonic time.

    A section that gets the lock only after the end counts as waiting and not as served.
    """
    section, clock, served, worst = Section(words), time.monotonic_ns, 0, 0
    while (asked := clock()) < end:
        cycle(section)
        if section.entered >= begin:
            worst = max(worst, section.entered - asked)
            served += section.entered < end
    return Share(section.sections, served, section.overlaps, worst)


def work(group: str, label: str, pipe: Connection, path: str) -> None:
    """Open one entry and serve its slices until the pipe says stop; every failure is sent back as text."""
    os.setsid()  # Linux divides processors among sessions first: see benchmarks/README.md
    django.setup()
    with contextlib.ExitStack() as stack:
        try:
            ready = stack.enter_context(find(group, label).open())
        except Exception as error:
            pipe.send(reason(error))
            return
        pipe.send("")
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as shared, memoryview(shared).cast("q") as words:
            while (order := pipe.recv()) is not None:
                try:
                    pipe.send(compete(ready.cycle, words, *order))
                except Exception as error:
                    pipe.send(reason(error))


class Crew:
    """The processes of one entry, with its connections open until the last slice; a context manager.

    All of them are forked from one process that has imported everything.
    """

    def __init__(self, group: str, label: str, size: int) -> None:
        self.group, self.label, self.size = group, label, size
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["benchmarks.preloaded"])

    def __enter__(self) -> Self:
        """Make the shared memory and start the workers, without waiting for them."""
        self.file = tempfile.NamedTemporaryFile()
        self.file.write(bytes(8 * 2))
        self.file.flush()
        self.shared = mmap.mmap(self.file.fileno(), 0)
        self.words = memoryview(self.shared).cast("q")
        self.pipes, self.processes = [], []
        for _ in range(self.size):
            pipe, theirs = self.context.Pipe()
            args = (self.group, self.label, theirs, self.file.name)
            process = self.context.Process(target=work, args=args, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(pipe)
            self.processes.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers and give the memory back."""
        self.stop()
        self.words.release()
        self.shared.close()
        self.file.close()

    def order(self, what: object) -> None:
        """Tell every worker which slice to run, or with None to close what it has open and end."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(what)

    def stop(self, patience: float = 10.0) -> None:
        """Wait until every worker has ended, and end by force those that do not."""
        self.order(None)
        for process in self.processes:
            process.join(patience)
            if process.is_alive():
                process.kill()
                process.join()

    def ready(self) -> None:
        """Wait until every worker has opened its entry; RuntimeError if one cannot."""
        self._answers(time.monotonic() + PATIENCE)

    def run(self, seconds: float, lead_in: float) -> tuple[list[Share], int]:
        """Let all workers compete; return their shares of the time after the lead-in, and how many updates were lost.

        Nothing is counted before all of them stand in the queue, so that one that wakes late has no smaller share.
        Raises RuntimeError with the first worker's own error if one failed, or if one did not come back in time.
        """
        self.words[COUNTER] = self.words[INSIDE] = 0
        begin = time.monotonic_ns() + int(lead_in * 1e9)
        self.order((begin, begin + int(seconds * 1e9)))
        shares = self._answers(time.monotonic() + lead_in + seconds + PATIENCE)
        return shares, sum(share.sections for share in shares) - self.words[COUNTER]

    def _answers(self, deadline: float) -> list[Share]:
        """Collect what every worker sends; those that send nothing are killed."""
        answers = [answer(pipe, deadline) for pipe in self.pipes]
        if None in answers:
            self.stop(patience=0.0)
            raise RuntimeError(f"{answers.count(None)} of {self.size} workers ended or were stuck and have been killed")
        if errors := [answer for answer in answers if isinstance(answer, str) and answer]:
            raise RuntimeError(errors[0])
        return answers


def answer(pipe: Connection, deadline: float) -> Any:
    """Return what a process sent, None if it ended or sent nothing by that monotonic time."""
    try:
        return pipe.recv() if pipe.poll(max(0.0, deadline - time.monotonic())) else None
    except EOFError:
        return None
