"""Several aliases on servers that hang are one wait for who looks, and leave nothing behind."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import conf, held_locks
from django_distlock.manager.introspection import MOST_LOOKS
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.redis.server import BACKEND, Own
from tests.faults.conftest import proxied
from tests.support.timing import within

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.conftest import Proxied

__all__ = ["proxied"]
pytestmark = pytest.mark.usefixtures("databases")


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("distlock-list")}


def test_three_aliases_of_a_server_that_was_stopped(settings: Any, tmp_path: Path) -> None:
    with Own(tmp_path) as own:
        hung = {f"redis{n}": {"BACKEND": BACKEND, "OPTIONS": {"url": own.url}} for n in range(3)}
        settings.DISTLOCK = {**hung, "memory": settings.DISTLOCK["memory"]}
        own.signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            reports = held_locks()
            within(time.monotonic() - began, 2.7)
        finally:
            own.signal(signal.SIGCONT)
        errors = {report.alias: bool(report.error) for report in reports}
        assert list(errors) == list(conf.configured())
        assert {alias: errors[alias] for alias in (*hung, "memory")} == {**dict.fromkeys(hung, True), "memory": False}
        eventually(lambda: not threads(), "a thread is left behind")


def test_a_server_that_hangs_between_two_statements(proxied: Proxied, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connecting, listing and what blocks have each their time; together they have two seconds and a half."""
    proxy = proxied("mysql")
    backend: Any = registry.entry("mysql").backend
    inspect = backend.inspect

    def slowly() -> Any:
        found = inspect()
        time.sleep(1.5)  # a server under load
        proxy.blackhole()
        return found

    monkeypatch.setattr(backend, "inspect", slowly)
    began = time.monotonic()
    (report,) = held_locks("mysql")
    within(time.monotonic() - began, 2.7)
    assert report.error == "TimeoutError"
    proxy.cut()
    eventually(lambda: not threads(), "a thread is left behind")


def test_those_who_look_again_and_again_at_what_hangs_do_not_pile_up(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where names of hosts are not resolved, a look comes back after minutes; the page is reloaded meanwhile."""
    settings.DISTLOCK = {alias: settings.DISTLOCK[alias] for alias in ("memory", "redis")}
    goes_on = threading.Event()
    monkeypatch.setattr(registry.entry("redis").backend, "inspect", lambda: goes_on.wait(60) and [])
    reports: list[dict[str, str | None]] = []

    def look() -> None:
        began = time.monotonic()
        reports.append({report.alias: report.error for report in held_locks()})
        within(time.monotonic() - began, 2.9)

    before = threading.active_count()
    lookers = [threading.Thread(target=look) for _ in range(30)]
    for looker in lookers:
        looker.start()
    for looker in lookers:
        looker.join()
    assert {(report["redis"], report["memory"]) for report in reports} == {("TimeoutError", None)}
    assert sum(thread.name == "distlock-list-redis" for thread in threading.enumerate()) == MOST_LOOKS
    goes_on.set()
    eventually(lambda: not threads(), "a thread is left behind")
    assert threading.active_count() <= before
    assert [report.error for report in held_locks("redis")] == [None]


def test_without_a_thread_to_be_had_the_others_are_told(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "distlock-list-redis":
            raise RuntimeError("can't start new thread")
        start(thread)

    settings.DISTLOCK = {alias: settings.DISTLOCK[alias] for alias in ("memory", "redis")}
    monkeypatch.setattr(threading.Thread, "start", refused)
    for _ in range(MOST_LOOKS + 1):
        errors = {report.alias: report.error for report in held_locks()}
        assert (errors["redis"], errors["memory"]) == ("RuntimeError", None)
    monkeypatch.undo()
    assert [report.error for report in held_locks("redis")] == [None]
