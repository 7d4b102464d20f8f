"""Locks on the page: a process that holds them, others that wait for them."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, advisory_lock
from django_distlock.manager.registry import registry
from django_distlock.operations.admin.rows import LockRows
from tests.conftest import eventually
from tests.support.processes import Child, Servant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django.live_server_helper import LiveServer

    from tests.operations.admin.browsing import Page
    from tests.support.child import Link

# What stands on the page: alias, name, and how many processes wait. One engine of each kind.
SCENE = [
    ("postgres", "invoice:4711", 2),
    ("mysql", "nightly-import", 1),
    ("leasetable_postgres", "stock:shelf 9", 1),
    ("redis", "mail:newsletter", 2),
    ("zookeeper", "cluster:rebalance", 1),
]
# On the session that holds the first one.
BESIDE = "invoice:4712"
PATIENCE = 10


class Holder:
    """Another process: holds what it is told to."""

    def __init__(self, link: Link) -> None:
        self.leases: dict[str, Any] = {}

    def hold(self, using: str, name: str) -> str:
        lease = self.leases[name] = advisory_lock(name, using=using, timeout=PATIENCE).acquire()
        return lease.using

    def hold_many(self, using: str, names: list[str]) -> int:
        for name in names:
            self.hold(using, name)
        return len(names)

    def told(self, name: str) -> str:
        """What the holder is told while it still holds and does nothing."""
        lease, lost = self.leases[name], threading.Event()
        lease.on_lost(lambda *_: lost.set())
        lost.wait(PATIENCE)
        try:
            lease.ensure_held()
        except LockLost as error:
            return type(error).__name__
        return "nothing"

    def let_go(self, name: str) -> str:
        try:
            self.leases.pop(name).release()
        except LockLost as error:
            return type(error).__name__
        return "released"


def wait(link: Link, wanted: list[tuple[str, str]]) -> None:
    """A process that waits for each of the locks, in threads; ends by being killed."""
    for using, name in wanted:
        lock = advisory_lock(name, using=using, timeout=300)
        threading.Thread(target=lock.acquire, name=f"waiter of {name}", daemon=True).start()
    link.say("waiting")
    link.hear()


class Scene:
    """The processes. A test that alters something says so; one that needs it as it was made has it made anew."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.altered = True

    def make(self) -> None:
        self.end()
        self._stack.callback(end_leases)
        self.holder = self._stack.enter_context(Servant(Holder))
        for using, name, _waiters in SCENE:
            assert self.holder.do("hold", using, name) == using
        assert self.holder.do("hold", SCENE[0][0], BESIDE) == SCENE[0][0]
        for number in range(max(waiters for _using, _name, waiters in SCENE)):
            wanted = [(using, name) for using, name, waiters in SCENE if waiters > number]
            child = self._stack.enter_context(Child(wait, wanted))
            self._stack.callback(child.kill)
            assert child.hear() == "waiting"
        self.altered = False

    def complete(self) -> None:
        """Wait until it is seen. Where the server knows only hashes of names, the holder writes them down, and who it
        is: within two seconds, while the browser starts."""
        who = f":{self.holder.pid}:MainThread"
        for using, name, count in (*SCENE, (SCENE[0][0], BESIDE, 0)):
            eventually(lambda u=using, n=name, c=count: seen_so(u, n, who, c), f"{name} is not seen")
            assert name not in registry.entry(using).known_names().values()

    def end(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def made(site: LiveServer) -> Iterator[Scene]:
    scene = Scene()
    try:
        scene.make()
        yield scene
    finally:
        scene.end()


@pytest.fixture(scope="module")
def seen(made: Scene, logged_in: Page) -> None:
    made.complete()


@pytest.fixture
def scene(made: Scene, seen: None) -> Scene:
    """As it was made, but for what other tests say that they alter."""
    return made


@pytest.fixture
def whole_scene(scene: Scene) -> Scene:
    """As it was made, whatever the tests before have done."""
    if scene.altered:
        scene.make()
        scene.complete()
    return scene


@pytest.fixture
def holder(scene: Scene) -> Servant:
    """The process that holds the scene's locks."""
    return scene.holder


def seen_so(using: str, name: str, who: str, waiters: int) -> bool:
    """Is it held by ``who``, while so many wait?"""
    infos = [row.info for row in LockRows().of(using).rows if row.info.name == name]
    return [(who in (info.holder or ""), info.waiters) for info in infos] == [(True, waiters)]


def end_leases() -> None:
    """Who waited and was killed may have become a holder just before: its lease would last for half a minute."""
    for using, _name, _waiters in SCENE[2:]:  # sessions end with their processes
        for row in LockRows().of(using).rows:
            if row.info.name in {name for _using, name, _waiters in SCENE}:
                row.take_away("the scene is over")
