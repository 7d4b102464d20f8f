"""Worker processes that compete for one lock and check, in shared memory, that it excludes."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import django

from benchmarks.children import answer
from benchmarks.entries import find
from benchmarks.failures import reason

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

PATIENCE = 45.0  # seconds beyond the run itself after which a worker counts as stuck
WARM_UP = 0.25  # seconds of competition before the run that counts
COUNTER, INSIDE = 0, 1  # the two shared 64-bit words
WORDS = 2


@dataclass
class Share:
    """What one worker saw in one run."""

    sections: int
    late: int  # sections begun in time that got the lock only after the end
    overlaps: int
    worst_ns: int
    ended_ns: int


class Section:
    """Read, check and write shared memory: what must never be done by two processes at once."""

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.me = os.getpid()
        self.entered = self.sections = self.overlaps = 0

    def __call__(self) -> None:
        """Count one section; an update is lost if another process writes between the read and the write."""
        self.entered = time.perf_counter_ns()
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


def compete(cycle: Callable[[Callable[[], object]], None], words: memoryview, seconds: float) -> Share:
    """Take the lock as often as possible for ``seconds`` and note the longest wait."""
    section, clock, worst, late = Section(words), time.perf_counter_ns, 0, 0
    deadline = clock() + int(seconds * 1e9)
    while (asked := clock()) < deadline:
        cycle(section)
        worst = max(worst, section.entered - asked)
        late += section.entered > deadline
    return Share(section.sections, late, section.overlaps, worst, clock())


def work(group: str, pipe: Connection, barrier: Barrier, path: str) -> None:
    """Serve runs in a process of its own until the pipe says stop; every failure is sent back as text."""
    django.setup()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as shared, memoryview(shared).cast("q") as words:
        while (order := pipe.recv()) is not None:
            label, seconds = order
            entry = find(group, label)()
            try:
                entry.open()
                barrier.wait(PATIENCE)
                # opens what is opened at the first wait, as a process has that lives longer than this run
                compete(entry.cycle, memoryview(bytearray(8 * WORDS)).cast("q"), WARM_UP)
                barrier.wait(PATIENCE)
                pipe.send(compete(entry.cycle, words, seconds))
            except Exception as error:
                barrier.abort()
                pipe.send(reason(error))
            finally:
                with contextlib.suppress(Exception):
                    entry.close()


class Crew:
    """Processes that stay for many runs, so that starting Python is not measured; a context manager."""

    def __init__(self, group: str, size: int) -> None:
        self.group, self.size = group, size
        self.context = multiprocessing.get_context("spawn")

    def __enter__(self) -> Self:
        """Make the shared memory and start the workers."""
        self.file = tempfile.NamedTemporaryFile()
        self.file.write(bytes(8 * WORDS))
        self.file.flush()
        self.shared = mmap.mmap(self.file.fileno(), 0)
        self.words = memoryview(self.shared).cast("q")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers and give the memory back."""
        self.stop()
        self.words.release()
        self.shared.close()
        self.file.close()

    def start(self) -> None:
        """Start one process per seat."""
        self.barrier = self.context.Barrier(self.size)
        self.pipes, self.processes = [], []
        for _ in range(self.size):
            pipe, theirs = self.context.Pipe()
            args = (self.group, theirs, self.barrier, self.file.name)
            process = self.context.Process(target=work, args=args, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(pipe)
            self.processes.append(process)

    def stop(self, patience: float = 10.0) -> None:
        """Ask every worker to end, and end by force those that do not."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(patience)
            if process.is_alive():
                process.kill()
                process.join()

    def run(self, label: str, seconds: float) -> tuple[list[Share], int]:
        """Let all workers compete at once; return their shares and how many updates were lost.

        Raises RuntimeError with the first worker's own error if one failed, or if one did not come back in time.
        """
        self.words[COUNTER] = self.words[INSIDE] = 0
        for pipe in self.pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send((label, seconds))
        deadline = time.monotonic() + seconds + PATIENCE
        answers = [answer(pipe, deadline) for pipe in self.pipes]
        if None in answers:
            self.stop(patience=0.0)
            self.start()
            raise RuntimeError(f"{answers.count(None)} of {self.size} workers ended or were stuck and have been killed")
        errors = [answer for answer in answers if isinstance(answer, str)]
        if errors:
            self.barrier.reset()
            raise RuntimeError(next((text for text in errors if "BrokenBarrierError" not in text), errors[0]))
        return answers, sum(share.sections for share in answers) - self.words[COUNTER]
