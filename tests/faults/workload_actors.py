"""The workers of test_workloads.py: a racy counter in a plain file (W1) and an oracle of the kernel's own (W2).

All that is seen goes to one journal, line by line in single appends, so that one that is killed leaves what it saw:

    w <value> <section>          wrote that value to the counter: a value that is written twice is a lost update
    o <section> <other> <time>   met another section inside: the kernel had given its flock away
    s <section>                  found at its end that its lock was lost
    e <kind>                     a lock failed with that error
    p <seconds>                  this process had no processor for so long
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_distlock import DistlockError, Lock, advisory_lock
from django_distlock.manager.registry import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNTER, ORACLE, JOURNAL = "counter", "oracle", "journal"
PATIENCE = 10.0  # seconds for one acquire; longer than a dead holder's TTL
TTL = 0.6
# The heart of a process beats so often; without a beat for so long it renews no lease in time. Seconds.
BEAT, STARVED = 0.02, TTL / 3


class Desk:
    """The files of one run, as one thread has opened them."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.counter = os.open(self.folder / COUNTER, os.O_RDWR | os.O_CREAT)
        self.oracle = os.open(self.folder / ORACLE, os.O_RDWR | os.O_CREAT)
        self.journal = os.open(self.folder / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, line: str) -> None:
        os.write(self.journal, f"{line}\n".encode())

    @contextlib.contextmanager
    def inside(self, token: str, held: Callable[[], bool]) -> Iterator[None]:
        """Around what only one may do at a time. The oracle notices who is not alone, and keeps nobody out: the counter
        has to find that out by itself."""
        try:
            fcntl.flock(self.oracle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self.oracle, token.ljust(40).encode(), 0)
        except BlockingIOError:
            other = os.pread(self.oracle, 40, 0).decode().strip() or "0"
            self.note(f"o {token} {other} {time.monotonic()}")
        try:
            value = int(os.pread(self.counter, 20, 0) or 0) + 1
            yield
            if held():
                os.pwrite(self.counter, str(value).ljust(20).encode(), 0)
                self.note(f"w {value} {token}")
        finally:
            fcntl.flock(self.oracle, fcntl.LOCK_UN)

    def close(self) -> None:
        for fd in (self.counter, self.oracle, self.journal):
            os.close(fd)


# --- the lock, and locks that are broken on purpose


def sound(lock: Lock) -> Any:
    return lock


def no_lock(lock: Lock) -> Any:
    return contextlib.nullcontext()


@contextlib.contextmanager
def early(lock: Lock) -> Iterator[None]:
    """Releases before the section ends."""
    lock.acquire().release()
    yield


def own_name(lock: Lock) -> Any:
    """A name that each process hashes in its own way."""
    return advisory_lock(f"{lock.name}-{os.getpid()}", using=lock.using, timeout=lock.timeout)


_turns = itertools.count(1)


def sometimes(lock: Lock) -> Any:
    """Lets one in twenty-five in without asking."""
    return contextlib.nullcontext() if next(_turns) % 25 == 0 else lock


def no_renewal(lock: Lock) -> Any:
    """The TTL is shorter than the section, and nobody renews."""
    return advisory_lock(lock.name, using=lock.using, timeout=lock.timeout, ttl=0.05, max_hold=0.05)


KINDS = {kind.__name__: kind for kind in (sound, no_lock, early, own_name, sometimes, no_renewal)}


def work(link: Any, using: str, name: str, folder: str, kind: str, threads: int, pause: float, seconds: float) -> None:
    """In a child: one run, from the moment at which it is told to begin."""
    os.nice(10)  # whoever measures something goes first
    desks = [Desk(folder) for _ in range(threads)]
    link.say("ready")
    link.hear()
    until, over = time.monotonic() + seconds, threading.Event()
    heart = threading.Thread(target=_beat, args=(desks[0], over))
    workers = [
        threading.Thread(target=_worker, args=(using, name, desk, kind, f"{os.getpid()}.{number}", pause, until))
        for number, desk in enumerate(desks)
    ]
    for thread in (heart, *workers):
        thread.start()
    for worker in workers:
        worker.join()
    over.set()
    heart.join()
    registry.close()
    link.say("done")


def _beat(desk: Desk, over: threading.Event) -> None:
    """Tell a lease that was lost for want of a processor from one that was not renewed."""
    due = time.monotonic() + BEAT
    while not over.wait(BEAT):
        now = time.monotonic()
        if now - due > STARVED:
            desk.note(f"p {now - due:.2f}")
        due = now + BEAT


def _worker(using: str, name: str, desk: Desk, kind: str, who: str, pause: float, until: float) -> None:
    ttl = {"ttl": TTL} if registry.entry(using).backend.supports_ttl else {}
    lock = advisory_lock(name, using=using, timeout=PATIENCE, **ttl)  # type: ignore[arg-type]
    rounds = itertools.count()
    while time.monotonic() < until:
        token = f"{who}.{next(rounds)}"
        try:
            with KINDS[kind](lock) as lease:
                with desk.inside(token, lambda lease=lease: lease is None or lease.held):
                    time.sleep(pause)
                if lease is not None and not lease.held:
                    desk.note(f"s {token}")
        except DistlockError as error:
            desk.note(f"e {type(error).__name__}")
