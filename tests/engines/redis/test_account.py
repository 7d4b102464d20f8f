"""The accounts that the pages of Redis and Redlock give to copy are enough for all that a lock does."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, advisory_lock, held_locks, semaphore
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.concurrency.deadline import Deadline
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.tokens import new_token
from django_distlock.manager.acquire import ask_engine
from django_distlock.manager.lock_table import Hold
from django_distlock.manager.registry import registry
from django_distlock.operations.doctor import diagnose
from django_distlock.records import Claim
from tests.conftest import eventually
from tests.docs.pages import blocks
from tests.engines.redis.server import BACKEND, client
from tests.support import services

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("databases")
NODES = [f"redis{number}" for number in range(1, 4)]


def documented(page: str) -> tuple[str, str, list[str]]:
    """User, password and rules of the only ACL SETUSER on a page."""
    (rules,) = (
        found[1].split()
        for block in blocks(f"docs/backends/{page}.md", "text")
        if (found := re.match(r"ACL SETUSER ([^\n]*(?:\n  [^\n]+)*)\n\Z", block.code))
    )
    user, *rules = rules
    (password,) = (rule[1:] for rule in rules if rule.startswith(">"))
    return user, password, rules


@pytest.fixture(params=["redis", "redlock"])
def account(request: pytest.FixtureRequest, settings: Any) -> Iterator[str]:
    """An alias whose account has nothing but what its page says."""
    user, password, rules = documented(request.param)
    for node in NODES:
        with client(node) as server:
            server.acl_log_reset()
            server.execute_command("ACL", "SETUSER", user, "reset", *rules)
    ports = [services.load()[node]["port"] for node in NODES]
    urls = [f"redis://{user}:{password}@127.0.0.1:{port}/0" for port in ports]
    if request.param == "redis":
        entry = {"BACKEND": BACKEND, "OPTIONS": {"url": urls[0]}}
    else:
        entry = {"BACKEND": "django_distlock.backends.redlock.RedlockBackend", "OPTIONS": {"nodes": urls}}
    settings.DISTLOCK = {**settings.DISTLOCK, "account": entry}
    yield "account"
    registry.close()
    denied = set()
    for node in NODES:
        with client(node) as server:
            denied |= {entry["object"] for entry in server.acl_log() if entry["username"] == user}
            server.acl_log_reset()
            server.acl_deluser(user)
    assert denied <= {"client", "client|setinfo"}, "redis-py asks for it, and does without"


def test_acquire_extend_release_list_and_doctor(account: str, name: str) -> None:
    lock = advisory_lock(name, using=account, timeout=5)
    with lock as lease:
        lease.extend(20)
        lease.ensure_held()
        (report,) = held_locks(account)
        assert report.error is None
        assert name in [info.name for info in report.locks]
    found = diagnose(account)
    assert [finding for finding in found if finding.level == "error"] == []
    assert not [finding for finding in found if "INFO" in finding.text]


def test_wait_and_hand_over(account: str, name: str) -> None:
    """The waiter has a backend of its own, as another process has."""
    lease = advisory_lock(name, using=account).acquire(timeout=5)
    entry = registry.entry(account)
    other = type(entry.backend)(account, entry.backend.options)
    claim = Claim(key=entry.key(name), ttl=30.0, token=new_token(), answer_by=monotonic() + 10)
    hold = Hold(other, claim.key, "another process", False)
    flow = ask_engine(hold, claim, Deadline(10))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run, flow)
        eventually(
            lambda: any(info.waiters for info in held_locks(account)[0].locks if info.name == name), "none waits"
        )
        lease.release()
        waiting.result(10)
        grant = hold.grant
    assert grant is not None
    assert other.release(grant)
    other.close()


def test_shared_and_semaphore(account: str, name: str) -> None:
    if registry.entry(account).backend.supports_shared:
        with advisory_lock(name, using=account, shared=True, timeout=5):
            pass
    with semaphore(name + "many", limit=2, using=account, timeout=5):
        pass


def test_break(account: str, name: str) -> None:
    lease = advisory_lock(name, using=account).acquire(timeout=5)
    (info,) = (info for info in held_locks(account)[0].locks if info.name == name)
    assert registry.entry(account).backend.break_lock(info)
    with pytest.raises(LockLost):
        lease.extend(20)
