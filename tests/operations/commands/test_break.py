"""``manage.py distlock break`` and ``prune``."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError

from django_distlock import Lock, advisory_lock
from django_distlock.manager.registry import registry
from django_distlock.signals import lock_broken
from tests.conftest import eventually
from tests.operations.commands.test_list import Terminal, call, down

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["down"]
pytestmark = pytest.mark.usefixtures("databases")

BREAKABLE = ["memory", "leasetable", "postgres", "mysql", "redis", "redlock", "zookeeper"]


@pytest.fixture
def reasons() -> Iterator[list[str]]:
    heard: list[str] = []

    def hear(reason: str, **facts: Any) -> None:
        heard.append(reason)

    lock_broken.connect(hear)
    yield heard
    lock_broken.disconnect(hear)


@pytest.mark.parametrize("using", BREAKABLE)
def test_the_holder_is_told(using: str, name: str, reasons: list[str]) -> None:
    ttl = {"ttl": 0.9} if registry.entry(using).backend.supports_ttl else {}  # the renewal tells
    lease = advisory_lock(name, using=using, **ttl).acquire()
    status, out, err = call("break", name, "--using", using, "--yes", "--reason", "it hangs")
    assert (status, err) == (0, "")
    assert "held by" in out
    assert "Broken: " in out
    assert re.fullmatch(r"manage\.py distlock break by \S+: it hangs", reasons[0])
    eventually(lambda: lease.lost, "the holder does not know")
    assert call("break", name, "--using", using, "--yes")[0] == 1


@pytest.mark.usefixtures("down")
def test_nobody_holds_it(name: str) -> None:
    status, out, err = call("break", name, "--yes")
    assert (status, out) == (1, "")
    assert "The locks of alias 'down' cannot be listed: ConnectionError." in err
    assert "is not held." in err
    with pytest.raises(CommandError) as error:
        call("break", name, "--using", "down", "--yes")
    assert error.value.returncode == 69


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["break"], "Give the name"),
        (["break", "x", "--key", "y"], "Give the name"),
        (["break", "", "--using", "memory"], "name must not be empty"),
        (["break", "x", "--all", "--holder", "1"], "not allowed with"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        call(*arguments)


class Answers(Terminal):
    """A person at a terminal."""

    def __init__(self, answer: str, before: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._answer, self._before = answer, before

    def readline(self, *args: Any) -> str:
        self._before()
        return self._answer


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("YES\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_it_asks(monkeypatch: pytest.MonkeyPatch, answer: str, status: int, name: str) -> None:
    lease = advisory_lock(name, using="memory").acquire()
    monkeypatch.setattr("sys.stdin", Answers(answer))
    said = call("break", name)
    assert said[0] == status
    assert ("Nothing was broken." in said[2]) == bool(status)
    assert lease.lost is not bool(status)
    lease._release(False)


def test_who_cannot_be_asked_must_say_yes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with advisory_lock(name, using="memory") as lease:
        with pytest.raises(CommandError, match="--yes"):
            call("break", name)
        assert not lease.lost


def test_a_lock_that_changes_hands_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    leases = [advisory_lock(name, using="redis").acquire()]

    def change() -> None:
        leases[0].release()
        leases.append(advisory_lock(name, using="redis").acquire())

    monkeypatch.setattr("sys.stdin", Answers("y\n", change))
    status, _, err = call("break", name, "--using", "redis")
    assert status == 1
    assert "has changed hands" in err
    assert not leases[1].lost
    leases[1].release()


def shared(name: str) -> list[Any]:
    """Two holders, in two contexts."""
    import asyncio

    async def acquire(lock: Lock) -> Any:
        return await lock.aacquire()

    return [asyncio.run(acquire(advisory_lock(name, using="memory", shared=True))) for _ in range(2)]


def test_one_of_several_holders(name: str) -> None:
    leases = shared(name)
    with pytest.raises(CommandError, match="--holder N, or --all"):
        call("break", name, "--yes")
    for number in ("0", "3"):
        with pytest.raises(CommandError, match="between 1 and 2"):
            call("break", name, "--yes", "--holder", number)
    status, out, _ = call("break", name, "--yes", "--holder", "2")
    assert status == 0
    assert "1. memory: " in out
    assert "(shared)" in out
    assert sum(lease.lost for lease in leases) == 1
    for lease in leases:
        lease._release(False)


def test_all_of_several_holders(name: str) -> None:
    leases = shared(name)
    assert call("break", name, "--yes", "--all")[0] == 0
    assert all(lease.lost for lease in leases)


def test_a_lock_whose_name_the_engine_does_not_know(name: str) -> None:
    """By its name, and by its key."""
    with advisory_lock(name, using="zookeeper"):
        (lock,) = json.loads(call("list", "--using", "zookeeper")[1])["backends"][0]["locks"]
    lease = advisory_lock(name, using="zookeeper").acquire()
    assert call("break", "--key", lock["key"], "--using", "zookeeper", "--yes")[0] == 0
    eventually(lambda: lease.lost, "the holder does not know")


def test_prune(using: str) -> None:
    status, out, _ = call("prune", "--using", using, "--days", "0.5")
    assert status == 0
    assert re.fullmatch(r"(\w+: \d+ deleted\n)+|Nothing is kept there\.\n", out)


@pytest.mark.parametrize("days", ["-1", "nan", "inf"])
def test_prune_takes_days(days: str) -> None:
    with pytest.raises(CommandError, match="--days"):
        call("prune", f"--days={days}")
