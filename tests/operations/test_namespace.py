"""NAMESPACE: sites and tenants that share a server do not share names, whatever asks for a lock."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, override_settings

from django_distlock import LockLost, advisory_lock, alocked, lock_all, locked, semaphore
from django_distlock.manager.registry import registry
from django_distlock.operations import history
from django_distlock.operations.lookup import held_by_name
from django_distlock.operations.recorder import recorder
from django_distlock.testing import override_locks
from tests.operations.admin.pages import ALIASES, log_in, names, remove_people
from tests.operations.world import MEMORY, call, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", ["memory", "postgres", "redis"])
tenant: ContextVar[Any] = ContextVar("tenant", default="")


def current() -> Any:
    return tenant.get()


@pytest.fixture
def tenants(using: str) -> Iterator[None]:
    with override_settings(DISTLOCK={using: {**ALIASES[using], "NAMESPACE": f"{__name__}.current"}}):
        yield


def at(which: Any, action: Callable[[], Any]) -> Any:
    """Do it as a request of that tenant: in a context of its own, where nothing is held."""

    def inside() -> Any:
        tenant.set(which)
        return action()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(inside).result()


def is_free(lock: Any) -> bool:
    lease = lock.try_acquire()
    if lease is not None:
        lease.release()
    return lease is not None


@each_engine
def test_one_name_is_another_lock_for_each_tenant(using: str, name: str, tenants: None) -> None:
    name = name[-40:]
    lock = advisory_lock(name, using=using, timeout=5)
    for taken in (lock, lock, lock_all([name, f"{name} too"], using=using, timeout=5)):  # also one that is warm
        with at("a", taken.acquire) as lease:
            assert [at(which, partial(is_free, lock)) for which in ("a", "b", "")] == [False, True, True]
            found = [at(which, lambda: locked([name], using=using)) for which in ("a", "b", "")]
            assert found == [{name}, set(), set()]
            assert at("a", lambda: asyncio.run(alocked([name], using=using))) == {name}
            assert taken is not lock or lease.name == name
    one = semaphore(name, 1, using=using, timeout=5)
    with at("a", one.acquire):
        assert [at(which, partial(is_free, one)) for which in ("a", "b", "")] == [False, True, True]


@each_engine
def test_lists_show_it_and_a_break_hits_one(using: str, name: str, tenants: None) -> None:
    name = name[-40:].rpartition("[")[2]
    lock = advisory_lock(name, using=using, timeout=5)
    leases = {which: at(which, lock.acquire) for which in ("a", "b")}
    try:
        assert names(log_in(Client(), "boss"), f"q={name}&o=name") == [f"a:{name}", f"b:{name}"]
    finally:
        remove_people()
    assert f" a:{name} " in call("list", "--table")[1]
    assert call("break", name, "--yes")[0] == 1  # that of no tenant is free
    with override_settings(DISTLOCK_HISTORY_DAYS=1):
        status, out, _ = call("break", f"a:{name}", "--yes")
        assert (status, f"Broken: a:{name}, held by" in out) == (0, True)
        with pytest.raises(LockLost):
            leases["a"].release()
        if using == "postgres":  # one session held both
            leases["b"].__exit__(KeyError, None, None)
            leases["b"] = at("b", lock.acquire)
        leases["b"].ensure_held()
        assert at("b", lambda: call("break", name, "--yes"))[0] == 0  # in its context the name is enough
        leases["b"].__exit__(KeyError, None, None)
        assert recorder.flush(25)
    assert {"broken"} <= {event.kind for event in history.recent(using, f"b:{name}")}
    history.prune(0)


def names_found(name: str) -> list[str | None]:
    """What ``distlock break`` would break."""
    return [info.name for report in held_by_name(name) for info in report.locks]


@pytest.mark.parametrize("using", ["memory", "postgres"])
def test_a_name_with_a_colon_is_first_one_of_the_own_tenant(using: str, name: str, tenants: None) -> None:
    """Another tenant's lock may be listed under the same text."""
    name = name[-40:].rpartition("[")[2]
    mine = at("a", advisory_lock(f"b:{name}", using=using, timeout=5).acquire)
    theirs = at("b", advisory_lock(name, using=using, timeout=5).acquire)
    try:
        assert at("a", lambda: names_found(f"b:{name}")) == [f"a:b:{name}"]
        assert at("", lambda: names_found(f"b:{name}")) == [f"b:{name}"]
        mine.release()
        assert at("a", lambda: names_found(f"b:{name}")) == [f"b:{name}"]
    finally:
        theirs.release()


def test_a_text_is_for_the_whole_site_and_signals_tell_it(name: str) -> None:
    with override_settings(DISTLOCK={"default": {**MEMORY, "NAMESPACE": "one"}}), override_locks():
        assert registry.entry("default").key(name).full_name == f"one:{name}"
        with listening(name) as heard, advisory_lock(name) as lease:
            assert at("", advisory_lock(name).try_acquire) is None
            assert lease.name == name
    assert [(kind, facts["namespace"]) for kind, facts in heard] == [
        (kind, "one") for kind in ("acquired", "timed_out", "released")
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("line\nend", "printable"),
        ("x" * 101, "at most 100 characters"),
        (b"site", "must be a callable"),
        (None, "must be a str"),
        ("no.such.module", "NAMESPACE: No module named"),
    ],
)
def test_a_wrong_one_is_told_by_the_check(given: Any, message: str) -> None:
    with override_settings(DISTLOCK={"default": {**MEMORY, "NAMESPACE": given}}):
        (found,) = [each for each in run_checks(tags=["distlock"]) if each.id == "distlock.E003"]
        assert message in found.msg
        with pytest.raises(ImproperlyConfigured, match="NAMESPACE"):
            advisory_lock("x").acquire()


def test_a_function_that_works_in_requests_only_stops_no_command(name: str) -> None:
    def needs_request() -> str:
        raise LookupError

    with override_settings(DISTLOCK={"default": {**MEMORY, "NAMESPACE": needs_request}}), listening(name) as heard:
        assert "warning: No lock was acquired: NAMESPACE cannot be asked here (LookupError)." in call("doctor")[1]
        assert call("break", name, "--yes")[0] == 1
        with pytest.raises(LookupError):
            advisory_lock(name).acquire()
    assert [(kind, facts["namespace"]) for kind, facts in heard] == [("failed", "")]


def test_a_function_that_answers_wrongly_gives_no_lock(name: str) -> None:
    with override_settings(DISTLOCK={"default": {**MEMORY, "NAMESPACE": tenant.get}}), listening(name) as heard:
        for wrong in (None, 7, "\x1b"):
            with pytest.raises(ImproperlyConfigured, match=r"DISTLOCK\['default'\]: NAMESPACE must"):
                at(wrong, advisory_lock(name).acquire)
        assert at("a", partial(is_free, advisory_lock(name)))
    assert [kind for kind, _ in heard] == ["failed"] * 3 + ["acquired", "released"]
