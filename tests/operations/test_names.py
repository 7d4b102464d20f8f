"""What is shown of a hold: its name, though keys are hashed, and its holder. What is written down of it, and when."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from rest_framework.views import APIView

from django_distlock import advisory_lock, break_lock, held_locks
from django_distlock.backends.text import SHORT, readable, short
from django_distlock.manager import name_log
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.name_log import REWRITE_AFTER, NameLog
from django_distlock.manager.registry import registry
from django_distlock.models import LockName
from django_distlock.operations.pruning import prune
from tests.conftest import eventually
from tests.engines.statements import counted
from tests.faults.server import SESSION_LOCKS, ask, key_of, noted
from tests.operations.world import without_table

if TYPE_CHECKING:
    from django_distlock.records import LockInfo


pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)
NAMES = LockName._meta.db_table


class Looks:
    """So many checks of a name log that is told the time, until what they found is written."""

    def __init__(self) -> None:
        self.log = NameLog()
        self._now = 1000.0

    def __call__(self, using: str, times: int = 1, later: float = 1.0) -> None:
        for _ in range(times):
            self._now += later
            self.log.check(self._now, lock_table.held())
            eventually(lambda: math.inf not in self.log._next_write.values(), "it still writes")


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Looks:
    monkeypatch.setattr("django_distlock.manager.keepalive.name_log.check", lambda now, held: None)
    return Looks()


def shown(using: str, name: str) -> LockInfo:
    """As another process is shown it: what this one knows of itself does not help."""
    backend: Any = registry.entry(using).backend
    key = backend.listed_as(key_of(using, name))
    (info,) = [info for info in backend.inspect() if info.key == key]
    return info


@each_engine
def test_a_name_is_written_once_and_never_in_an_acquire(using: str, name: str, look: Looks) -> None:
    """By the second look that meets it, so that names which never come again are not written."""
    lock = advisory_lock(name, using=using)
    with lock:
        look(using)
        assert not noted(using, name)
    with lock:
        look(using)
    assert [row[:2] for row in noted(using, name)] == [(name, 0)]
    with counted(using) as seen:
        for _ in range(10):
            with lock:
                look(using)
    assert sum(calls for text, calls in seen.items() if text.upper() != "SELECT ?" and text != "SELECT $1") == 20
    with counted(using) as seen, lock:
        look(using, later=REWRITE_AFTER)
    assert len(seen) > 2, "a name that is in use for longer than a day was not seen again"


@each_engine
def test_a_hold_says_who_and_since_when_and_a_later_one_is_another(using: str, name: str, look: Looks) -> None:
    lock, backend = advisory_lock(name, using=using), registry.entry(using).backend
    with lock as lease:
        look(using, 3)
        ((found, session, holder),) = noted(using, name)
        assert (found, session) == (name, backend.server_session(lease._grant))
        assert holder.endswith(f":{os.getpid()}:MainThread")
        first = shown(using, name)
        assert first.acquired_at is not None
    look(using)
    assert break_lock(first) is False
    asked = datetime.now(UTC)
    with lock as lease:
        since = shown(using, name).acquired_at
        assert since is None or since >= asked, "the time of an earlier hold is shown"
        look(using, 3)
        assert shown(using, name).acquired_at is not None
        assert break_lock(shown(using, name)) is True
        eventually(lambda: lease.lost, "the holder is not told")
        lease.__exit__(KeyError, None, None)


def test_the_table_is_bounded_and_written_again(name: str, look: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have displaced what is held for long, or somebody has emptied the table."""
    with advisory_lock(name, using="postgres"):
        look("postgres", 2)
        before = noted("postgres", name)
        assert prune("postgres", days=1) == {"names": 0}
        assert prune("postgres", days=0)["names"] >= 1
        look("postgres", later=REWRITE_AFTER / 2)
        assert not noted("postgres", name)
        look("postgres", later=REWRITE_AFTER / 2)
        assert noted("postgres", name) == before
    prune("postgres", days=0)
    monkeypatch.setattr(name_log, "MOST", 5)
    monkeypatch.setattr(name_log, "TRIM_EVERY", 1)
    for number in range(9):
        with advisory_lock(f"{name} {number}", using="postgres"):
            look("postgres", 2)
    assert ask("postgres", f"SELECT count(*) FROM {NAMES}")[0][0] <= 6
    assert noted("postgres", f"{name} 8")
    assert not noted("postgres", f"{name} 0")


@each_engine
def test_without_the_table_locks_work_and_the_log_says_so_once(using: str, name: str, look: Looks, caplog: Any) -> None:
    """The code is newer than the database: `migrate` has not run yet. The name is written after it has."""
    with advisory_lock(name, using=using) as lease:
        with without_table(using, LockName):
            with caplog.at_level(logging.DEBUG, "django_distlock.backends"):
                look(using, 4)
            assert name in [info.name for info in held_locks(using)[0].locks]
            lease.ensure_held()
        (record,) = caplog.records
        assert (record.levelname, "migrate" in record.message) == ("WARNING", True)
        look.log._next_write.clear()
        look(using)
        assert noted(using, name)


@each_engine
def test_a_write_that_hangs_costs_no_lock(using: str, name: str, look: Looks) -> None:
    """It is not on the lock's own session, which is declared dead when a statement hangs."""
    with advisory_lock(name, using=using) as lease, transaction.atomic("mariadb" if using == "mysql" else using):
        look(using)
        ask(using, f"LOCK TABLE {NAMES}" if using == "postgres" else f"LOCK TABLES {NAMES} WRITE")
        try:
            look(using)
            lease.ensure_held()
            with advisory_lock(f"{name} too", using=using):
                pass
        finally:
            if using == "mysql":
                ask(using, "UNLOCK TABLES")
        lease.ensure_held()
    assert any(look.log._next_write.values()), "the write did not hang"


# --- the holder: its thread or task, and the route that it serves, never the path, which may be secret

SECRET = "c4n4ry-t0ken"


def holders(name: str) -> HttpResponse:
    """Of the lock and of what is taken within, after host and process."""
    found = [str(info.holder) for info in held_locks("redis")[0].locks if (info.name or "").startswith(name)]
    return HttpResponse("\n".join(holder.split(":", 2)[2] for holder in found))


def urls(name: str) -> tuple[Any, ...]:
    lock = advisory_lock(name, using="redis", timeout=5)
    inner = advisory_lock(f"{name} within", using="redis", timeout=5)

    @lock
    def view(request: HttpRequest, token: str) -> HttpResponse:
        with inner:
            return holders(name)

    @lock
    async def async_view(request: HttpRequest, token: str) -> HttpResponse:
        async with inner:
            return await asyncio.to_thread(holders, name)

    class Rest(APIView):
        authentication_classes = permission_classes = ()

        @lock
        def post(self, request: HttpRequest, token: str) -> HttpResponse:
            return holders(name)

    views = {"reset": view, "async": async_view, "rest": Rest.as_view()}
    return tuple(path(f"{kind}/<token>/", view) for kind, view in views.items())


def test_a_view_tells_its_route(name: str) -> None:
    name, thread = name[-100:], threading.current_thread().name

    async def get() -> str:
        return str((await AsyncClient().get(f"/async/{SECRET}/")).text)

    ways = [
        ("POST", "reset", "POST /reset/<token>/", 2),
        ("POST", "rest", "POST /rest/<token>/", 1),
        ("web-9:1:MainThread", "reset", "? /reset/<token>/", 2),  # clients choose it
    ]
    with override_settings(ROOT_URLCONF=urls(name)):
        for method, kind, shown, locks in ways:
            told = Client().generic(method, f"/{kind}/{SECRET}/").text.split("\n")
            assert [each.startswith(f"{thread}, {shown}") for each in told] == [True] * locks, told
        told = asyncio.run(get()).split("\n")
        task = re.compile(r"Task-\d+ \([\w.<>]+\), GET /async/<token>/")
        assert [bool(task.match(each)) for each in told] == [True] * 2, told
    with advisory_lock(name, using="redis", timeout=5):
        assert "POST" not in holders(name).text


def test_a_long_route_of_other_letters_is_cut_between_them() -> None:
    route = "host:1:MainThread, GET /" + "профиль/" * 20
    kept = short(route)
    assert SHORT // 6 < len(readable(kept)) <= len(kept) <= SHORT
    assert route.startswith(readable(kept))
