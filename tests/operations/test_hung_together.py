"""Several aliases on servers that hang are one wait for who looks, and leave nothing behind."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import conf, held_locks
from django_distlock.registry import registry
from tests.backends.redis_server import BACKEND, Own
from tests.conftest import eventually
from tests.faults.conftest import proxied
from tests.timing import within

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
