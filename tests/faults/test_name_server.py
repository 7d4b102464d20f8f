"""A name server that hangs is a server that does not answer: no deadline of a lock is missed for it (R5)."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import BackendUnavailable, advisory_lock, held_locks
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.faults.conftest import BACKENDS, database_alias
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("databases")

NAME = "postgres.example"


@pytest.fixture
def answers(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The alias "named" has a host with a name, which is known when the event is set."""
    known, truth = threading.Event(), socket.getaddrinfo
    address = connections.settings["postgres"]["HOST"]

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == NAME:
            known.wait(60)
            # as of a host with two addresses, at the first of which nobody listens
            return [*truth("127.0.0.9", *args, **kwargs), *truth(address, *args, **kwargs)]
        return truth(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with database_alias("named", "postgres", HOST=NAME):
        settings.DISTLOCK = {
            "named": {
                "BACKEND": BACKENDS["postgres"],
                "OPTIONS": {"database": "postgres", "session_database": "named"},
            }
        }
        yield known
        known.set()
        registry.close()


def lookups() -> int:
    return sum(thread.name == "distlock-named-lookup" for thread in threading.enumerate())


@pytest.mark.tier2
def test_r5_a_name_server_that_hangs(answers: threading.Event, name: str) -> None:
    for number in range(1, 4):
        began = time.monotonic()
        with pytest.raises(BackendUnavailable):
            advisory_lock(name, using="named", timeout=0.5).acquire()
        within(time.monotonic() - began, 0.55)
        assert lookups() == number
    began = time.monotonic()
    assert held_locks("named")[0].error
    within(time.monotonic() - began, 2.7)
    answers.set()
    eventually(lambda: not lookups(), "a thread is left behind")
    with advisory_lock(name, using="named", timeout=5) as lease:
        lease.ensure_held()


def test_lookups_do_not_pile_up(answers: threading.Event, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_distlock.concurrency import abandoned_calls

    monkeypatch.setattr(abandoned_calls, "MAX_ABANDONED", 3)
    for _ in range(8):
        with pytest.raises(BackendUnavailable):
            advisory_lock(name, using="named", timeout=0.1).acquire()
    assert lookups() == 3


def test_a_host_that_is_not_known(answers: threading.Event, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(BackendUnavailable, match="Name or service not known"):
        advisory_lock(name, using="named", timeout=1).acquire()


@pytest.mark.parametrize("host", ["two..dots", "x" * 64 + ".example"])
def test_what_cannot_be_a_name_is_told_at_once(host: str, settings: Any, name: str) -> None:
    """Python refuses to look it up at all."""
    with database_alias("named", "postgres", HOST=host):
        options = {"database": "postgres", "session_database": "named"}
        settings.DISTLOCK = {"named": {"BACKEND": BACKENDS["postgres"], "OPTIONS": options}}
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match="label"):
            advisory_lock(name, using="named", timeout=5).acquire()
        within(time.monotonic() - began, 1.0)
        registry.close()


@pytest.mark.parametrize("changes", [{"HOST": "127.0.0.1,127.0.0.1"}, {"HOST": "localhost,127.0.0.1"}])
def test_several_hosts(changes: dict[str, str], settings: Any, name: str) -> None:
    with database_alias("named", "postgres", **changes):
        options = {"database": "postgres", "session_database": "named"}
        settings.DISTLOCK = {"named": {"BACKEND": BACKENDS["postgres"], "OPTIONS": options}}
        advisory_lock(name, using="named", timeout=5).acquire().release()
        registry.close()
