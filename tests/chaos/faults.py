"""What is done to the workers of an engine, to its servers and to the network between, at times that a seed decides.

One fault comes after the other, but they last, so that they meet: what ends a fault is due later.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import signal
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

import redis
from django.db import connections

from tests.chaos.oracle import ORACLE
from tests.chaos.worker import TTL, work
from tests.faults import server
from tests.faults.proxy import Proxy
from tests.support import services
from tests.support.processes import Child
from tests.support.services.files import write_json

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

REDISES = tuple(f"redis{number}" for number in range(1, 6))
SERVERS: dict[str, tuple[str, ...]] = {
    "leasetable": (),
    "postgres": ("postgres",),
    "mysql": ("mariadb",),
    "redis": ("redis1",),
    "redlock": REDISES,
    "zookeeper": ("zookeeper",),
}
# R18: for so long a session may not know of its loss. And a worker that is stopped cannot be told at all.
TOLD_WITHIN, LONGEST_STOP = 7.0, 2 * TTL
# Seconds from one fault to the next, and how long those last that last.
BETWEEN, STOP, SERVER_STOP = (0.3, 1.5), (0.1, LONGEST_STOP), (0.2, 3)
LAG, DELAY, SILENCE = (0.5, 2), (0.02, 0.3), (0.5, 9)


@contextmanager
def proxies(folder: Path) -> Iterator[dict[str, Proxy]]:
    """A proxy in front of every server, and a file of services that leads through them for the workers."""
    state = services.load()
    with ExitStack() as stack:
        doors = {
            name: stack.enter_context(Proxy(at["host"], at["port"]))
            for name, at in state.items()
            if name != "pgbouncer"
        }
        write_json(folder / "state.json", {name: {**state[name], "port": door.port} for name, door in doors.items()})
        yield doors


def child_behind(proxied: Path) -> Child:
    """A worker whose servers are all behind proxies."""
    with patch.dict(os.environ, DISTLOCK_SERVICES=str(proxied)):
        return Child(work)


class Havoc:
    """The faults of one engine, and the workers that they hit."""

    def __init__(
        self, using: str, name: str, folder: Path, doors: dict[str, Proxy], rng: random.Random,
        replace: Callable[[int], Child], crew: list[Child],
    ) -> None:  # fmt: skip
        self.using, self.name, self.folder, self.rng, self.replace, self.crew = using, name, folder, rng, replace, crew
        self.doors = {server: doors[server] for server in SERVERS.get(using, ())}
        self.killed: dict[int, float] = {}
        self.stopped: dict[int, float] = {}
        self.ever_stopped: list[int] = []
        self.done: Counter[str] = Counter()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._cut_off = -TOLD_WITHIN  # when the last fault came that may end a session

    def kinds(self) -> dict[str, Callable[[], None]]:
        """What can be done to this engine; what is named twice is done twice as often."""
        of_workers = {"kill -9": self.kill, "SIGSTOP": self.stop, "Ctrl-C": self.interrupt}
        if not self.doors:
            return of_workers
        found = of_workers | {
            "delay": self.delay,
            "lost reply": self.lose_reply,
            "half-close": self.half_close,
            "cut": self.cut,
            "silence": self.silence,
            "server stops": self.stop_server,
            "server restarts": self.restart_server,
        }
        if self.using in server.SESSION_LOCKS or self.using.startswith("red"):
            found["session kill"] = self.kill_session
        return found

    def run(self, until: float, only: Collection[str] | None) -> None:
        """Make faults until then, each kind once before one comes again, and undo what lasts longer."""
        kinds, bag = self.kinds(), list[str]()
        due = time.monotonic() + self.rng.uniform(*BETWEEN)
        while (now := time.monotonic()) < until:
            if self._later and self._later[0][0] <= now:
                heapq.heappop(self._later)[2]()
            elif due <= now:
                if not bag:
                    bag = sorted(kinds if only is None else only)
                    self.rng.shuffle(bag)
                kind = bag.pop()
                self.done[kind] += 1
                kinds[kind]()
                due = time.monotonic() + self.rng.uniform(*BETWEEN)
            else:
                time.sleep(0.01)
        while self._later:
            heapq.heappop(self._later)[2]()

    def later(self, seconds: float, deed: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), deed))

    # workers

    def victim(self) -> Child:
        """The process that is in the section, as far as one can see; every third time another one."""
        said = (self.folder / ORACLE).read_text().split(".")[0]
        other = self.rng.choice(self.crew)
        if self.rng.randrange(3) == 0:
            return other
        return next((child for child in self.crew if str(child.pid) == said), other)

    def kill(self) -> None:
        """It relied on its lock until now; until it was stopped, if it is; and if its session may have ended, of which
        it had some time to be told, until then."""
        victim = self.victim()
        now = time.monotonic()
        when = self.stopped.pop(victim.pid, now)
        if self.using in server.SESSION_LOCKS and self._cut_off > now - TOLD_WITHIN - LONGEST_STOP:
            when = min(when, self._cut_off)
        self.killed[victim.pid] = when
        victim.kill()
        victim.__exit__(None, None, None)
        self.crew[self.crew.index(victim)] = self.replace(victim.pid)

    def stop(self) -> None:
        victim = self.victim()
        if victim.pid in self.stopped:
            return
        self.stopped[victim.pid] = time.monotonic()
        self.ever_stopped.append(victim.pid)
        victim.signal(signal.SIGSTOP)

        def wake() -> None:
            if self.stopped.pop(victim.pid, None) is not None:
                victim.signal(signal.SIGCONT)

        self.later(self.rng.uniform(*STOP), wake)

    def interrupt(self) -> None:
        self.victim().signal(signal.SIGINT)

    # the network

    def door(self) -> Proxy:
        self._cut_off = time.monotonic()
        return self.doors[self.rng.choice(sorted(self.doors))]

    def delay(self) -> None:
        door = self.door()
        door.delay(self.rng.uniform(*DELAY))
        self.later(self.rng.uniform(*LAG), lambda: door.delay(0))

    def lose_reply(self) -> None:
        """The reply of one of the next requests, and with it the connection: TCP loses nothing in the middle. The
        server learns of it later."""
        door = self.door()
        door.swallow(self.rng.randint(1, 20), cut=True)
        self.later(self.rng.uniform(*LAG), door.cut)

    def half_close(self) -> None:
        """The clients see the end of their connections, the server sees them go on for a while."""
        door = self.door()
        door.drop_clients()
        self.later(self.rng.uniform(*LAG), door.cut)

    def cut(self) -> None:
        self.door().cut(reset=self.rng.random() < 0.5)

    def silence(self) -> None:
        """What is sent is acknowledged and not answered until later."""
        door = self.door()
        door.blackhole()
        self.later(self.rng.uniform(*SILENCE), door.heal)

    # servers

    def server(self) -> str:
        self._cut_off = time.monotonic()
        return self.rng.choice(sorted(self.doors))

    def stop_server(self) -> None:
        name = self.server()
        services.signal(name, signal.SIGSTOP)
        self.later(self.rng.uniform(*SERVER_STOP), lambda: services.signal(name, signal.SIGCONT))

    def restart_server(self) -> None:
        """In order or with SIGKILL; its data stays."""
        name = self.server()
        services.signal(name, signal.SIGCONT)
        if self.rng.random() < 0.5:
            services.signal(name, signal.SIGKILL)
            services.start(name)
        else:
            services.restart(name)
        self._cut_off = time.monotonic()

    def kill_session(self) -> None:
        """What an operator does: end the sessions that hold the lock, or all clients of a Redis."""
        name = self.server()
        services.signal(name, signal.SIGCONT)  # a server that is stopped would answer nobody, and not us
        if self.using not in server.SESSION_LOCKS:
            at = services.load()[name]
            with contextlib.suppress(redis.RedisError):
                client = redis.Redis(at["host"], at["port"], password=at["password"], socket_timeout=1)
                client.client_kill_filter(skipme=True, _type="normal")
                client.client_kill_filter(skipme=True, _type="pubsub")
            return
        connections[server.DATABASES[self.using]].close()  # it may have been started again
        with contextlib.suppress(Exception):  # the session has gone meanwhile
            for session in server.holders(self.using, self.name):
                server.end_session(self.using, session)
