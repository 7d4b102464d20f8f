"""Threads that connect, and that no driver lets go before a name server or a server has answered, do not pile up."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, advisory_lock
from tests.conftest import eventually
from tests.engines.redis.server import BACKEND
from tests.support import services
from tests.support.timing import within

if TYPE_CHECKING:
    from tests.faults.conftest import Proxied

pytestmark = pytest.mark.usefixtures("databases")

MOST, TRIES = 4, 12


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    from django_distlock.concurrency import abandoned_calls

    monkeypatch.setattr(abandoned_calls, "MAX_ABANDONED", MOST)


def connecting() -> list[str]:
    ends = ("-open", "-connect")
    return [thread.name for thread in threading.enumerate() if thread.name.endswith(ends)]


def try_in_vain(using: str, name: str) -> None:
    for _ in range(TRIES):
        with pytest.raises(BackendUnavailable):
            advisory_lock(name, using=using, timeout=0.2).acquire()


def works_again(using: str, name: str) -> None:
    eventually(lambda: not connecting(), "a thread is left behind")
    advisory_lock(name, using=using, timeout=5).acquire().release()


@pytest.mark.usefixtures("few")
def test_a_name_server_that_hangs(settings: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    server = services.load()["redis1"]
    answers, truth = threading.Event(), socket.getaddrinfo

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "redis.example":
            answers.wait(60)
            host = server["host"]
        return truth(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    url = f"redis://:{server['password']}@redis.example:{server['port']}/0"
    settings.DISTLOCK = {"far": {"BACKEND": BACKEND, "OPTIONS": {"url": url}}}
    try:
        try_in_vain("far", name)
        assert len(connecting()) == MOST
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match="still"):
            advisory_lock(name, using="far", timeout=5).acquire()
        within(time.monotonic() - began, 1.0, what="what is known not to answer")
    finally:
        answers.set()
    works_again("far", name)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("using", ["mysql", "leasetable_postgres", "leasetable_mariadb"])
def test_a_server_that_takes_connections_and_does_not_answer(using: str, proxied: Proxied, name: str) -> None:
    proxy = proxied(using)
    proxy.blackhole()
    try_in_vain(using, name)
    assert 0 < len(connecting()) <= MOST
    proxy.heal()
    proxy.cut()
    works_again(using, name)
