"""How many wait: a lower bound on every engine, said in the same words everywhere, and exact for who waits here."""

from __future__ import annotations

import io
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

from django_distlock import advisory_lock, held_locks
from django_distlock.backends.query import LockQuery
from django_distlock.operations.lookup import find_locks
from tests.conftest import eventually
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.records import LockInfo
    from tests.support.child import Link

pytestmark = pytest.mark.usefixtures("databases")

COUNT = 3


def queue_up(using: str, name: str) -> list[threading.Thread]:
    """Threads that wait for the lock, and give it back as soon as they have it."""

    def take_a_turn() -> None:
        with advisory_lock(name, using=using, timeout=60):
            pass

    threads = [threading.Thread(target=take_a_turn, daemon=True) for _ in range(COUNT)]
    for thread in threads:
        thread.start()
    return threads


def wait_there(link: Link, using: str, name: str) -> None:
    """Another process with as many waiters."""
    queue_up(using, name)
    link.say("waiting")
    link.hear()


def listed(using: str, name: str) -> LockInfo:
    """The lock. Redlock also lists the vote that a killed waiter has left on a node that its holder does not have."""
    (report,) = held_locks(using)
    infos = [info for info in report.locks if info.name == name]
    (info,) = (info for info in infos if info.details.get("nodes", "3 of 5") >= "3 of 5")
    return info


@pytest.fixture
def held(using: str, name: str) -> Iterator[None]:
    """Held by this process, which has waiters, too."""
    lease = advisory_lock(name, using=using, timeout=5).acquire()
    threads = queue_up(using, name)
    try:
        yield
    finally:
        lease.release()
        for thread in threads:
            thread.join()


def test_who_waits_in_the_process_that_looks_is_counted(held: None, using: str, name: str) -> None:
    """Though the server does not know of them."""
    eventually(lambda: listed(using, name).waiters == COUNT, "they are not counted")
    assert len(listed(using, name).waiting) == COUNT
    for awaited, found in ((True, 1), (False, 0)):
        for order in ((), ("-waiters",)):
            page = find_locks(LockQuery(text=name, awaited=awaited, order=order), using)
            assert (page.matching, len(page.locks)) == (found, found)


@pytest.mark.tier2
def test_another_process_counts_once_at_least(held: None, using: str, name: str, entry: Any) -> None:
    """It stands in line once, whoever queues behind."""
    if not entry.processes:
        return
    with Child(wait_there, using, name) as child:
        assert child.hear() == "waiting"
        eventually(lambda: listed(using, name).waiters == COUNT + 1, "it is not counted")
        child.kill()
    eventually(lambda: listed(using, name).waiters == COUNT, "the dead one is counted")


@pytest.mark.parametrize("using", ["memory"])
def test_the_words_are_the_same_in_each_form(held: None, using: str, name: str) -> None:
    eventually(lambda: listed(using, name).waiters == COUNT, "they are not counted")
    found = {}
    for form in ("--json", "--table"):
        out = io.StringIO()
        call_command("distlock", "list", "--using", using, form, stdout=out, no_color=True)
        found[form] = out.getvalue()
    (lock,) = (lock for lock in json.loads(found["--json"])["backends"][0]["locks"] if lock["name"] == name)
    assert lock["waiters_at_least"] == COUNT
    assert "waiters" not in lock
    assert found["--table"].splitlines()[0].endswith("  WAIT>=")
