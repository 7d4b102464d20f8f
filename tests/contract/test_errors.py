"""R6: a server that refuses is unavailable, with the driver's error as the cause, and so is one for which no thread can
be started; what a backend does not declare is refused, never silently ignored."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from django_distlock import (
    BackendUnavailable,
    DistlockError,
    UnsupportedOperation,
    advisory_lock,
    held_locks,
    lock_all,
    semaphore,
)
from django_distlock.backends.sessions.session import ServerError
from django_distlock.manager.registry import registry
from tests.conftest import connect
from tests.contract.actors import Actor, Face
from tests.contract.conftest import both_faces
from tests.faults.conftest import database_alias


@pytest.mark.cold
@pytest.mark.parametrize("using", ["postgres", "mysql", "leasetable_postgres", "leasetable_mariadb"])
@pytest.mark.parametrize("broken", [{"PORT": "1"}, {"USER": "nobody"}, {"NAME": "no_such_database"}], ids=repr)
def test_r6_a_server_that_refuses_is_unavailable(
    databases: None, using: str, name: str, broken: dict[str, str], settings: Any
) -> None:
    database = "postgres" if using.endswith("postgres") else "mariadb"
    options = {**settings.DISTLOCK[using]["OPTIONS"], "database": f"{database}_wrong"}
    with database_alias(f"{database}_wrong", database, **broken):
        settings.DISTLOCK = {**settings.DISTLOCK, "broken": {**settings.DISTLOCK[using], "OPTIONS": options}}
        for kind in ("sync", "async"):
            face = Face(kind)
            for attempt in ("acquire", "try_acquire"):
                with pytest.raises(BackendUnavailable, match=r"'broken'") as down:
                    getattr(face.actor(), attempt)(advisory_lock(name, using="broken"), timeout=5)
                assert down.value.__cause__ is not None
                assert not isinstance(down.value.__cause__, DistlockError)
            face.close()
        registry.reset()


@both_faces
@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_r6_a_server_that_refuses_the_statement_is_unavailable(
    databases: None, me: Actor, using: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither busy, which would let an on_busy go ahead, nor an error of the driver."""
    backend: Any = registry.entry(using).backend

    def refuse(*args: Any) -> Any:
        raise ServerError(0, "not today")

    kind = type(backend.sessions.shared_session)
    monkeypatch.setattr(kind, "try_lock", refuse)
    for attempt, timeout in (("acquire", 5), ("try_acquire", 0)):
        with pytest.raises(BackendUnavailable, match="not today"):
            getattr(me, attempt)(advisory_lock(name, using=using), timeout=timeout)


def refuses(what: str) -> Any:
    return pytest.raises(UnsupportedOperation, match=rf"^The backend \w+ of alias '\w+' cannot {what}")


def test_what_the_engine_cannot_is_refused(me: Actor, using: str, name: str, backend: Any) -> None:
    """Never silently exclusive, never silently not held, never silently for ever."""
    lives = "it is held for as long as its session lives"
    for arguments, able, what in (
        ({"shared": True}, backend.supports_shared, r"share a lock\."),
        ({"ttl": 30}, backend.supports_ttl, f"give a lock a ttl: {lives}"),
        ({"max_hold": 30}, backend.supports_ttl, f"give a lock a max_hold: {lives}"),
        ({"max_hold": None}, backend.supports_ttl, f"give a lock a max_hold: {lives}"),
    ):
        lock: Any = advisory_lock(name, using=using, **arguments)
        recipes = [lock, lock_all([lock])]
        if "ttl" in arguments:
            recipes.append(semaphore(name, 2, using=using, ttl=30))
        for recipe in recipes:
            for attempt in (me.acquire, me.try_acquire):
                if able:
                    me.release(attempt(recipe))
                else:
                    with refuses(what):
                        attempt(recipe)
    me.release(me.acquire(advisory_lock(name, using=using), timeout=0))


def test_what_a_lease_has_is_what_its_backend_declares(me: Actor, using: str, name: str, backend: Any) -> None:
    """valid_until, extend() and the fence."""
    lease = me.acquire(advisory_lock(name, using=using))
    if backend.supports_ttl:
        assert isinstance(lease.valid_until, float)
        me.extend(lease, 40)
    else:
        assert lease.valid_until is None
        with refuses("extend a lease: its locks have no TTL"):
            me.extend(lease, 40)
    if backend.supports_fencing:
        assert isinstance(lease.fence, int)
    else:
        with refuses("give a fencing token"):
            _ = lease.fence
    assert lease.held
    me.release(lease)


@pytest.mark.parametrize("cold", [False, True], ids=["connected", "cold"])
def test_r6_without_threads_locks_are_given_or_the_error_says_so(
    using: str, name: str, cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing hangs, nothing stays held, and all is well when there are threads again."""
    connect(using)
    if cold:
        registry.close()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        refused = None
        try:
            advisory_lock(name, using=using, timeout=5).acquire().release()
        except BackendUnavailable as error:
            refused = f"{error} {error.__cause__}"
        assert refused is None or (cold and "thread" in refused)
        [without] = held_locks(using=using)
        assert not without.locks
    with advisory_lock(name, using=using, timeout=25):
        [report] = held_locks(using=using)
        assert report.error is None
        assert report.locks
