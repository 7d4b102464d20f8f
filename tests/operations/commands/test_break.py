"""``manage.py distlock break``: after a confirmation, just the holder that was shown, as far as one has the right."""

from __future__ import annotations

import asyncio
import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import UnsupportedOperation, advisory_lock, break_lock, held_locks
from django_distlock.records import LockInfo
from tests.conftest import eventually
from tests.faults.server import holders, key_of, session_exists
from tests.operations.programs import hold
from tests.operations.world import DOWN, MEMORY, UNAVAILABLE, WRONG, Terminal, call, listening, poor_account
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("databases")


@pytest.mark.parametrize("using", ["postgres", "mysql", "redis"])
def test_the_holder_is_told_why(using: str, name: str) -> None:
    with listening(name) as heard:
        lease = advisory_lock(name, using=using).acquire()
        status, out, err = call("break", name, "--using", using, "--yes", "--reason", "it hangs")
        assert (status, err, "held by" in out, "Broken: " in out) == (0, "", True, True)
        assert re.fullmatch(r"manage\.py distlock break by \S+: it hangs", heard.facts("broken")["reason"])
        if using != "redis":  # whose holder looks at the next renewal
            eventually(lambda: lease.lost, "the holder does not know")
        assert call("break", name, "--using", using, "--yes")[0] == 1
    lease.__exit__(KeyError, None, None)


def test_nobody_holds_it(name: str, settings: Any) -> None:
    settings.DISTLOCK = {"default": MEMORY, "down": DOWN}
    status, out, err = call("break", name, "--yes")
    assert (status, out, "is not held." in err) == (1, "", True)
    assert "The locks of alias 'down' cannot be listed: ConnectionError." in err
    assert call("break", name, "--using", "down", "--yes")[0] == UNAVAILABLE


def answers(monkeypatch: pytest.MonkeyPatch, answer: str, before: Callable[[], object] = lambda: None) -> None:
    """A person at a terminal, and what happens before the answer."""
    terminal = Terminal()
    terminal.readline = lambda *args: before() or answer  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)


def test_it_asks(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for answer, status in (("n\n", 1), ("\n", 1), ("", 1), ("YES\n", 0)):
        lease = advisory_lock(name, using="memory").acquire()
        answers(monkeypatch, answer)
        found, _, err = call("break", name, "--using", "memory")
        assert (found, "Nothing was broken." in err, lease.lost) == (status, bool(status), not status)
        if status:  # who cannot be asked must say yes
            monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
            assert "--yes" in call("break", name, "--using", "memory")[2]
            lease.release()


def test_a_lock_that_changes_hands_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    leases = [advisory_lock(name, using="redis").acquire()]

    def change() -> None:
        leases[0].release()
        leases.append(advisory_lock(name, using="redis").acquire())

    answers(monkeypatch, "y\n", change)
    status, _, err = call("break", name, "--using", "redis")
    assert (status, "has changed hands" in err) == (1, True)
    leases[1].ensure_held()
    leases[1].release()


def test_several_holders(name: str) -> None:
    lock = advisory_lock(name, using="memory", shared=True)
    one, two = (asyncio.run(lock.aacquire()) for _ in range(2))  # in two contexts
    known = [name, "--using", "memory", "--yes"]
    for choice in ([], ["--holder", "0"], ["--holder", "3"]):
        status, _, err = call("break", *known, *choice)
        assert (status, "--holder" in err) == (WRONG, True)
    status, out, _ = call("break", *known, "--holder", "2")
    assert (status, "1. memory: " in out, "(shared)" in out) == (0, True, True)
    assert one.lost + two.lost == 1
    assert call("break", *known, "--all")[0] == 0
    assert one.lost + two.lost == 2


# --- who may end a session, and which one: the server decides


@pytest.mark.parametrize(("using", "right"), [("postgres", "pg_signal_backend"), ("mysql", "CONNECTION_ADMIN")])
def test_the_right_that_is_missing_is_named(using: str, right: str, name: str, settings: Any) -> None:
    with Child(hold, using, name) as child:
        assert child.hear() == "held"
        (session,), key, usual = holders(using, name), key_of(using, name), settings.DISTLOCK
        with poor_account({"mysql": "mariadb"}.get(using, using)) as database:
            settings.DISTLOCK = {**usual, using: {**usual[using], "OPTIONS": {"database": database}}}
            info = LockInfo(backend=using, key=key.text, details={"connection": str(session)})
            if using == "postgres":  # the names' table belongs to another account, too: the listing goes without
                info = next(each for each in held_locks(using)[0].locks if each.key == str(key.number))
            with pytest.raises(UnsupportedOperation, match=right):
                break_lock(info)
        settings.DISTLOCK = usual
        assert session_exists(using, session)
        child.say()
        assert child.hear() == ["released"]


def test_a_process_id_that_came_again_is_left_alone(name: str) -> None:
    """Another session with the same number has another start. And what is no key does not reach MySQL."""
    with advisory_lock(name, using="postgres") as lease:
        info = next(info for info in held_locks("postgres")[0].locks if info.name == name)
        for changed in ({"backend_start": "1.5"}, {"pid": "1"}, {"pid": "x"}, {"backend_start": "'"}):
            assert break_lock(replace(info, details={**info.details, **changed})) is False
        assert break_lock(replace(info, key=str(2**63))) is False
        lease.ensure_held()
    for key in ("' OR 1 = 1 -- ", "", "x" * 65, "UPPER", "a\\"):
        with pytest.raises(UnsupportedOperation, match="not one of ours"):
            break_lock(LockInfo(backend="mysql", key=key, details={"connection": "1"}))
