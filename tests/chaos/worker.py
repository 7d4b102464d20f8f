"""The workers of a chaos run: threads that may be interrupted, tasks that are cancelled, and a process that forks.

Each holding is written into the history (tests/faults/history.py) and shown to the oracle of the kernel (oracle.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from django_distlock import DistlockError, LockLost, advisory_lock
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from tests.chaos.oracle import Desk
from tests.faults.history import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_distlock import Lease, Lock

HISTORY = "history"
ROLES = ("threads", "threads", "tasks", "forks")
PATIENCE = 10.0  # seconds for one acquire; longer than a dead holder's TTL
TTL = 1.0
TASKS = 4
# In the section: mostly short, now and then long enough for a fault in the middle.
PAUSE, LONG_PAUSE, ONE_IS_LONG = 0.001, 0.2, 20
BETWEEN_CANCELS, BETWEEN_FORKS = (0.02, 0.4), (0.3, 1.5)
CHILD_PATIENCE = 20.0
# How long the table of this process may have something in it after its last release.
CLEAN_WITHIN = TTL + 2


# the lock, and locks that are broken on purpose


def sound(lock: Lock) -> Any:
    return lock


def no_lock(lock: Lock) -> Any:
    return contextlib.nullcontext()


def once_in_1000(lock: Lock) -> Any:
    """Lets one in a thousand in without asking."""
    return lock if random.randrange(1000) else contextlib.nullcontext()


def own_name(lock: Lock) -> Any:
    """A name that each process hashes in its own way."""
    return advisory_lock(f"{lock.name}-{os.getpid()}", using=lock.using, timeout=lock.timeout)


def no_renewal(lock: Lock) -> Any:
    """The TTL is shorter than the section, and nobody renews."""
    return advisory_lock(lock.name, using=lock.using, timeout=lock.timeout, ttl=0.05, max_hold=0.05)


KINDS = {kind.__name__: kind for kind in (sound, no_lock, once_in_1000, own_name, no_renewal)}


class Order(NamedTuple):
    """What a worker is told."""

    using: str
    name: str
    folder: str
    kind: str
    role: str
    seed: int
    until: float


class Gate:
    """Ctrl-C, which waits while the ledger is written: a worker that is interrupted there would tell a half."""

    def __init__(self) -> None:
        self._shut = self._waiting = False

    def __call__(self, *_: object) -> None:
        if self._shut:
            self._waiting = True
        else:
            raise KeyboardInterrupt

    def shut(self) -> None:
        self._shut = True

    def open(self) -> None:
        self._shut = False
        if self._waiting:
            self._waiting = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        try:
            self.open()
            yield
        finally:
            self._shut = True


class Actor:
    """One thread or task at work: the lock, its ledger and its dice."""

    def __init__(self, order: Order, number: int, gate: Gate | None = None) -> None:
        self.order, self.number, self.gate = order, number, gate or Gate()
        self.rng = random.Random(f"{order.seed}.{number}")
        ttl = {"ttl": TTL} if registry.entry(order.using).backend.supports_ttl else {}
        self.lock = advisory_lock(order.name, using=order.using, timeout=PATIENCE, **ttl)  # type: ignore[arg-type]
        self.rounds = itertools.count()
        self.open()

    def open(self) -> None:
        """Open the files; the child of a fork needs other ones than its parent, whose flock it would share."""
        self.desk = Desk(self.order.folder)
        self.journal = Journal(Path(self.order.folder) / HISTORY)

    def close(self) -> None:
        self.desk.close()
        self.journal.close()

    def over(self) -> bool:
        return time.monotonic() >= self.order.until

    def broken(self) -> Any:
        """The lock, or what a lock that is broken on purpose puts in its place."""
        return KINDS[self.order.kind](self.lock)

    def pause(self) -> float:
        return self.rng.uniform(0, LONG_PAUSE) if self.rng.randrange(ONE_IS_LONG) == 0 else PAUSE

    def round(self, inside: Callable[[Lease | None], None] = lambda lease: None) -> None:
        turn = Turn(self)
        with turn.noted(), self.broken() as lease:
            self.gate.shut()
            with turn.inside(lease), self.gate.opened():
                inside(lease)
                time.sleep(self.pause())
            self.gate.open()

    async def around(self) -> None:
        """:meth:`round` for a task."""
        turn = Turn(self)
        with turn.noted():
            async with self.broken() as lease:
                with turn.inside(lease):
                    await asyncio.sleep(self.pause())

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """An error that is none of the library's own is harm."""
        try:
            yield
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error}"
            self.desk.note("h " + " ".join(said.split()))


class Turn:
    """One turn of an actor at the lock, and what the ledger says of it."""

    def __init__(self, actor: Actor) -> None:
        self.desk, self.journal, self.gate, self.order = actor.desk, actor.journal, actor.gate, actor.order
        self.section = f"{os.getpid()}.{actor.number}.{next(actor.rounds)}"
        self.invoke, self.token = time.monotonic(), ""
        self.lease: Lease | None = None

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Around all of it. A release beside another exception does not raise; its lease knows."""
        try:
            yield
            self.journal.note("released", self.token)
        except LockLost:
            self.told()
        except DistlockError as error:
            self.desk.note(f"e {type(error).__name__}")
        finally:
            self.gate.shut()
            if self.lease is not None and self.lease.lost:
                self.told()

    def told(self) -> None:
        if self.token:
            self.journal.note("lost", self.token)
            self.desk.note(f"s {self.section}")

    @contextlib.contextmanager
    def inside(self, lease: Lease | None) -> Iterator[None]:
        """The section. At its end: what the lease says of itself, and that it is not relied on from here on."""
        self.lease = lease
        if lease is None:
            self.token = self.journal.granted(f"{self.order.using}/{self.order.name}", self.invoke)
        else:
            self.token = self.journal.took(lease, self.invoke)
        try:
            with self.desk.inside(self.section, lambda: lease is None or lease.held):
                yield
        finally:
            now = monotonic()
            if lease is not None and not lease.held:
                self.desk.note(f"s {self.section}")
            elif lease is not None and lease.valid_until is not None and lease.valid_until < now:
                self.desk.note("h expired-and-held")
            self.journal.note("releasing", self.token)


def work(link: Any) -> None:
    """In a child: follow one order, say what is left, and end."""
    os.nice(10)  # whoever measures something goes first
    gate = Gate()
    gate.shut()
    signal.signal(signal.SIGINT, gate)
    link.say("ready")
    order = Order(*link.hear())
    {"threads": threads, "tasks": tasks, "forks": forks}[order.role](order, gate)
    gate.shut()
    deadline = time.monotonic() + CLEAN_WITHIN
    while lock_table.all() and time.monotonic() < deadline:
        time.sleep(0.02)
    left = [repr(one) for one in lock_table.all()]
    registry.close()
    link.say(left)
    link.hear()


def threads(order: Order, gate: Gate) -> None:
    """The main thread, where Ctrl-C arrives, and one beside it."""
    actors = [Actor(order, 0, gate), Actor(order, 1)]
    beside = threading.Thread(target=repeat, args=(actors[1],))
    beside.start()
    repeat(actors[0])
    beside.join()
    for actor in actors:
        actor.close()


def repeat(actor: Actor) -> None:
    while not actor.over():
        with contextlib.suppress(KeyboardInterrupt), actor.watched():
            actor.gate.open()
            actor.round()
    actor.gate.shut()


def tasks(order: Order, gate: Gate) -> None:
    actors = [Actor(order, number) for number in range(TASKS)]
    asyncio.run(cancel_at_random(actors))
    for actor in actors:
        actor.close()


async def cancel_at_random(actors: list[Actor]) -> None:
    async def repeat(actor: Actor) -> None:
        while not actor.over():
            with actor.watched():
                await actor.around()

    rng, running = actors[0].rng, {actor: asyncio.create_task(repeat(actor)) for actor in actors}
    while not actors[0].over():
        await asyncio.sleep(rng.uniform(*BETWEEN_CANCELS))
        actor = rng.choice(actors)
        running[actor].cancel()
        actor.desk.note("f cancel")
        with contextlib.suppress(asyncio.CancelledError):
            await running[actor]
        running[actor] = asyncio.create_task(repeat(actor))
    for task in running.values():
        await task


def forks(order: Order, gate: Gate) -> None:
    """Fork in the middle of a section now and then: the child holds nothing, and gets the lock like a stranger."""
    actor = Actor(order, 0, gate)
    due = time.monotonic()
    children: dict[int, float] = {}

    def inside(lease: Lease | None) -> None:
        nonlocal due
        if lease is not None and time.monotonic() >= due and len(children) < 2:
            due = time.monotonic() + actor.rng.uniform(*BETWEEN_FORKS)
            gate.shut()
            child = os.fork()
            if not child:
                be_the_child(actor, lease)
            children[child] = time.monotonic() + CHILD_PATIENCE
            actor.desk.note("f fork")

    def reap() -> None:
        for child, deadline in list(children.items()):
            ended, _ = os.waitpid(child, os.WNOHANG)
            if not ended and time.monotonic() > deadline:
                actor.desk.note("h forked-child-is-stuck")
                os.kill(child, signal.SIGKILL)
                ended, _ = os.waitpid(child, 0)
            if ended:
                del children[child]

    while not actor.over():
        with contextlib.suppress(KeyboardInterrupt), actor.watched():
            gate.open()
            actor.round(inside)
        gate.shut()
        reap()
    while children:
        time.sleep(0.02)
        reap()
    actor.close()


def be_the_child(actor: Actor, lease: Lease) -> None:
    try:
        actor.open()
        actor.gate = Gate()
        with actor.watched():
            if lease.held:
                actor.desk.note("h held-by-a-forked-child")
            actor.round()
            registry.close()
    finally:
        os._exit(0)
