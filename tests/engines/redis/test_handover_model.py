"""R22a: every order of a few events in which a message about a lock is heard, by the real scripts and the real waiter.

The key of the lock moves between two nodes, as in a fail-over or when a slot migrates; each waiter is subscribed at one
of them, its requests go to the right one; and messages arrive at any time later. A waiter that believes that it holds
the lock holds it, with the fence of the message.
"""

from __future__ import annotations

import math
from types import SimpleNamespace, coroutine
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.backends.redis.commands import ACQUIRE, RELEASE, RedisAttempt, holder_of, keys_of
from django_distlock.keys import derive_key
from django_distlock.records import Claim
from tests.engines.redis.lua_redis import World, texts_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from django_distlock.backends.redis.connection import Push
    from django_distlock.records import Grant

KEY = derive_key("", "model", "model")
SCRIPTS = texts_of(ACQUIRE, RELEASE)
# Events after the first waiter has come.
DEPTH = 5


class Waiter:
    """A caller; it is its pool of connections, too, and the one connection in it: subscribed at one node, asking the
    owner."""

    ready_at = 0.0

    def __init__(self, world: World, name: str, node: int) -> None:
        self.world, self.node = world, node
        self.claim = Claim(key=KEY, ttl=30.0, token=name, answer_by=math.inf)
        self.channel = f"channel-{name}".encode()
        self.grant: Grant | None = None
        self._replies: list[Any] = []
        self.begin()

    def take(self) -> Waiter:
        return self

    def give(self, link: Waiter) -> None:
        """It stays open, and subscribed."""

    discard = give

    def subscribe(self) -> bytes:
        self.world.subscribers[self.channel.decode()] = self.node
        return self.channel

    def send(self, command: bytes) -> None:
        self._replies.append(self.world.run(command))

    async def areceive(self, until: float) -> Any:
        return self._replies.pop(0)

    @coroutine
    def alisten(self, until: float) -> Generator[None, Push | None, Push | None]:
        return (yield)  # the test sends what is heard

    def begin(self) -> None:
        attempt: Any = RedisAttempt(self, self.claim, b"{}", math.inf)  # type: ignore[arg-type]
        backend: Any = SimpleNamespace(_over=lambda turn_ends, now: False)
        self._waited = RedisBackend._waited(backend, attempt, math.inf, math.inf)
        self.go_on(None)

    def go_on(self, heard: Push | None) -> None:
        """Until it listens, or has been granted the lock."""
        try:
            self._waited.send(heard)
        except StopIteration as end:
            self.grant = end.value

    def release(self) -> None:
        self.grant = None
        self.world.run(RELEASE.by_hash(keys_of(KEY), holder_of(self.claim)))

    @property
    def messages(self) -> list[Push]:
        return self.world.flight[self.channel.decode()]


class Run:
    """One order of events, each a name and whom it concerns."""

    def __init__(self, scripts: dict[str, str], events: tuple[str, ...]) -> None:
        self.world = World(scripts)
        self.waiters = {"h": Waiter(self.world, "h", 0)}
        for event in events:
            self._do(*event.split())
            self.check(events)

    def possible(self) -> Iterator[str]:
        yield "move"
        if "b" not in self.waiters:
            yield from ("start b 0", "start b 1")
        for name, waiter in self.waiters.items():
            if waiter.grant is None and name != "h":
                yield f"look {name}"
                if waiter.messages:
                    yield f"hear {name}"
            elif waiter.grant is not None:
                yield f"release {name}"
                if name != "h":
                    yield f"again {name}"

    def _do(self, event: str, name: str = "", node: str = "") -> None:
        if event == "move":
            self.world.owner = 1 - self.world.owner
        elif event == "start":
            self.waiters[name] = Waiter(self.world, name, int(node))
        elif event == "look":
            self.waiters[name].go_on(None)
        elif event == "hear":
            self.waiters[name].go_on(self.waiters[name].messages.pop(0))
        else:
            self.waiters[name].release()
            if event == "again":  # its grant came too late: it was given back, and the same claim goes on
                self.waiters[name].begin()
            elif name != "h":
                del self.waiters[name]

    def check(self, events: tuple[str, ...]) -> None:
        held = self.world.held(keys_of(KEY)[0])
        believed = {
            holder_of(each.claim).decode(): each.grant.fence for each in self.waiters.values() if each.grant is not None
        }
        known = {who: f'"fence":{fence},' for who, fence in believed.items()}
        assert all(fact in held.get(who, "") for who, fact in known.items()), f"a phantom: {', '.join(events)}"
        assert len(held) <= 1


def explore(scripts: dict[str, str], events: tuple[str, ...], depth: int) -> int:
    """Every order; how many there were."""
    run = Run(scripts, events)
    return 1 + (sum(explore(scripts, (*events, each), depth - 1) for each in run.possible()) if depth else 0)


@pytest.mark.tier2
@pytest.mark.parametrize("node", [0, 1])
def test_r22a_whoever_believes_that_it_holds_does(node: int) -> None:
    assert explore(SCRIPTS, (f"start a {node}",), DEPTH) > 1000


def test_r22a_a_waiter_that_is_connected_to_the_owner_is_handed_the_lock() -> None:
    run = Run(SCRIPTS, ("start a 1", "move", "release h", "hear a"))
    assert run.waiters["a"].grant is not None


def changed(*pairs: tuple[str, str]) -> dict[str, str]:
    scripts = dict(SCRIPTS)
    for sha, text in scripts.items():
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        scripts[sha] = text
    return scripts


def test_the_model_sees_who_believes_the_reply_of_publish() -> None:
    """The rule that there was."""
    scripts = changed(
        ("if turn and connected(channel) then", "if turn then"),
        ("grant(head, tonumber(ttl), info, drawn)\n      say(channel, head, drawn)", "if HEARD then GRANT end"),
        ("HEARD", "call('PUBLISH', channel, head .. ' ' .. drawn .. ' ' .. string.format('%.0f', us)) > 0"),
        ("GRANT", "grant(head, tonumber(ttl), info, drawn)"),
    )
    with pytest.raises(AssertionError, match="a phantom: start a 0, move, release h, hear a"):
        explore(scripts, ("start a 0",), 3)


def test_the_model_sees_who_believes_a_message_of_an_earlier_grant(monkeypatch: Any) -> None:
    def credulous(self: Any, fence: int, clock: int) -> Grant:
        return self._grant(fence, self._asked, 0.0)  # type: ignore[no-any-return]

    monkeypatch.setattr(RedisAttempt, "_handed", credulous)
    with pytest.raises(AssertionError, match="a phantom"):
        explore(SCRIPTS, ("start a 0",), DEPTH)
