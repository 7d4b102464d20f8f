"""The accounts that the pages of Redis and Redlock give to copy are enough for all that a lock does."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_distlock import LockLost, advisory_lock, held_locks, semaphore
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from django_distlock.operations.doctor import diagnose
from django_distlock.records import Claim, new_token
from tests.conftest import eventually
from tests.docs.pages import blocks
from tests.engines.redis.server import client, waiters
from tests.support import services

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
def account(request: pytest.FixtureRequest, alias: Any) -> Any:
    """An alias whose account has nothing but what its page says."""
    user, password, rules = documented(request.param)
    for node in NODES:
        with client(node) as server:
            server.acl_log_reset()
            server.execute_command("ACL", "SETUSER", user, "reset", *rules)
    urls = [f"redis://{user}:{password}@127.0.0.1:{services.load()[node]['port']}/0" for node in NODES]
    alias("account", request.param, **({"url": urls[0]} if request.param == "redis" else {"nodes": urls}))
    yield "account"
    registry.close()
    denied = set()
    for node in NODES:
        with client(node) as server:
            denied |= {entry["object"] for entry in server.acl_log() if entry["username"] == user}
            server.acl_log_reset()
            server.acl_deluser(user)
    assert denied <= {"client", "client|setinfo"}, "redis-py asks for it, and does without"


def test_a_lock_its_waiters_its_list_and_the_doctor(account: str, name: str) -> None:
    """The waiter has a backend of its own, as another process has."""
    entry = registry.entry(account)
    lease = advisory_lock(name, using=account).acquire(timeout=5)
    lease.extend(20)
    lease.ensure_held()
    other = type(entry.backend)(account, entry.backend.options)
    claim = Claim(key=entry.key(name), ttl=30.0, token=new_token(), answer_by=monotonic() + 25)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.try_acquire, claim, 20)
        eventually(lambda: waiters(account, name), "none waits")
        lease.release()
        grant = waiting.result(25)
    assert other.release(grant)
    other.close()
    found = diagnose(account)
    assert not [finding for finding in found if finding.level == "error" or "INFO" in finding.text]


def test_other_kinds_and_a_break(account: str, name: str) -> None:
    if registry.entry(account).backend.supports_shared:
        with advisory_lock(name, using=account, shared=True, timeout=5):
            pass
    with semaphore(f"{name} many", limit=2, using=account, timeout=5):
        pass
    lease = advisory_lock(name, using=account).acquire(timeout=5)
    (info,) = (info for info in held_locks(account)[0].locks if info.name == name)
    assert registry.entry(account).backend.break_lock(info)
    with pytest.raises(LockLost):
        lease.extend(20)
