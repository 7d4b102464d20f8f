"""R22a: every order of a few events in which a message about a lock is heard, by the real scripts and the real waiter.

The key of the lock moves between two nodes, as in a fail-over or when a slot migrates; each waiter is subscribed at one
of them, its requests go to the right one; and messages arrive at any time later. A waiter that believes that it holds
the lock holds it, with the fence of the message.
"""

from __future__ import annotations

import math
from types import coroutine
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.backends.redis.attempt import Attempt
from django_distlock.backends.redis.listener import ASK_AGAIN, Inbox, Message
from django_distlock.backends.redis.scripts import ACQUIRE, LEAVE, RELEASE, Request, holder_of, keys_of
from django_distlock.concurrency import clock
from django_distlock.keys import derive_key
from django_distlock.records import Claim
from tests.engines.redis.lua_redis import World

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from django_distlock.records import Grant

KEY = derive_key("", "model", "model")
KEYS = keys_of(KEY.text_bytes)
SCRIPTS = {script.sha: script.text for script in (ACQUIRE, RELEASE, LEAVE)}
# Events after the first waiter has come.
DEPTH = 5


class Listens:
    """The ear of a process, subscribed at one node."""

    ended = False

    def __init__(self, world: World, name: str, node: int) -> None:
        self._world = world
        self.channel = name.encode()
        self.inboxes: dict[bytes, Inbox] = {}
        world.subscribers[name] = node

    def inbox(self, who: bytes) -> Inbox:
        return self.inboxes.setdefault(who, Inbox())

    @coroutine
    def get(self, inbox: Inbox, until: float) -> Generator[None, Message, Message]:
        if until <= clock.now():
            return ASK_AGAIN
        return (yield)  # the test sends what is heard

    def send(self, request: Request) -> None:
        """The server closes a connection that it hears no more of: see :class:`Waiter`."""

    def end(self) -> None:
        del self._world.subscribers[self.channel.decode()]


class Waiter:
    """A process with one caller; it is its servers and its listener, too. It listens at one node and asks the owner.
    When it learns that it is not heard there, it listens at the owner, or at the node to which its address leads."""

    def __init__(self, world: World, name: str, node: int, address: int | None = None) -> None:
        self.world, self.name, self.address = world, name, address
        self.claim = Claim(key=KEY, ttl=30.0, token=name)
        self.grant: Grant | None = None
        self.listener = self
        self._ears = 0
        self.ear: Any = self._listens_at(node)
        self.begin()

    def _listens_at(self, node: int) -> Listens:
        self._ears += 1
        return Listens(self.world, f"channel-{self.name}{self._ears}", node)

    async def open(self, until: float) -> Listens:
        self.ear = self._listens_at(self.world.owner if self.address is None else self.address)
        return self.ear  # type: ignore[no-any-return]

    async def call(self, keys: Any, request: Any, until: float, withdrawal: Any) -> tuple[Any, bool]:
        return self.world.run(request(self).packed), False

    def begin(self) -> None:
        servers: Any = self
        self._waits = Attempt(servers, self.claim).run(math.inf, True)
        self.go_on(None)

    def go_on(self, heard: Message | None) -> None:
        """Until it listens, or has been granted the lock."""
        try:
            self._waits.send(heard)
        except StopIteration as end:
            self.grant = end.value

    def hear(self) -> None:
        """The next message: a channel is that of one ear."""
        channel = self.ear.channel.decode()
        who, _, rest = self.world.flight[channel].pop(0).partition(b" ")
        if who == holder_of(self.claim):
            self.go_on(Message(*map(int, rest.split())))

    def release(self) -> None:
        self.grant = None
        self.world.run(Request(RELEASE, KEYS, holder_of(self.claim)).packed)

    @property
    def messages(self) -> list[bytes]:
        return self.world.flight[self.ear.channel.decode()]


class Run:
    """One order of events, each a name and whom it concerns."""

    def __init__(self, *events: str) -> None:
        self.world = World(SCRIPTS)
        self.waiters = {"h": Waiter(self.world, "h", 0)}
        for event in events:
            self._do(*event.split())
            self.check(events)

    def possible(self) -> Iterator[str]:
        yield "move"
        if "b" not in self.waiters:
            yield from ("start b 0", "start b 1 1")
        for name, waiter in self.waiters.items():
            if waiter.grant is None and name != "h":
                yield f"look {name}"
                if waiter.messages:
                    yield f"hear {name}"
            elif waiter.grant is not None:
                yield f"release {name}"
                if name != "h":
                    yield f"again {name}"

    def _do(self, event: str, name: str = "", node: str = "", address: str = "") -> None:
        if event == "move":
            self.world.owner = 1 - self.world.owner
        elif event == "start":
            self.waiters[name] = Waiter(self.world, name, int(node), int(address) if address else None)
        elif event == "look":
            self.waiters[name].go_on(ASK_AGAIN)
        elif event == "hear":
            self.waiters[name].hear()
        else:
            self.waiters[name].release()
            if event == "again":  # its grant came too late: it was given back, and the same claim goes on
                self.waiters[name].begin()
            elif name != "h":
                del self.waiters[name]

    def check(self, events: tuple[str, ...]) -> None:
        held = self.world.held(KEYS[0])
        believed = {
            holder_of(each.claim).decode(): each.grant.fence for each in self.waiters.values() if each.grant is not None
        }
        known = {who: f'"fence":{fence},' for who, fence in believed.items()}
        assert all(fact in held.get(who, "") for who, fact in known.items()), f"a phantom: {', '.join(events)}"
        assert len(held) <= 1


def explore(events: tuple[str, ...], depth: int) -> int:
    """Every order; how many there were."""
    run = Run(*events)
    return 1 + (sum(explore((*events, each), depth - 1) for each in run.possible()) if depth else 0)


@pytest.mark.tier2
@pytest.mark.parametrize("start", ["start a 0", "start a 1 1"])
def test_r22a_whoever_believes_that_it_holds_does(start: str) -> None:
    assert explore((start,), DEPTH) > 1000


def test_r22a_a_waiter_that_is_connected_to_the_owner_is_handed_the_lock() -> None:
    run = Run("start a 1 1", "move", "look a", "release h", "hear a")
    assert run.waiters["a"].grant is not None
