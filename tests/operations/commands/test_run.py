"""``manage.py distlock run NAME -- command``: a program under a lock."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import advisory_lock, held_locks
from tests.conftest import eventually
from tests.faults.conftest import proxied
from tests.faults.server import end_session, holders
from tests.operations.commands.calling import BUSY, UNAVAILABLE, call
from tests.operations.commands.test_list import DOWN
from tests.operations.programs import NOBODY, run, run_and_become_another, run_unseen
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faults.conftest import Proxied

__all__ = ["proxied"]
pytestmark = pytest.mark.usefixtures("databases")

# Says 1 (JSON, for the pipe of the test), then waits for its end.
WAITS = ["sh", "-c", "echo 1; exec sleep 60"]


@contextlib.contextmanager
def running(*arguments: str, by: Callable[..., Any] = run) -> Iterator[Child]:
    """Another process that runs a program, which has said that it runs."""
    with Child(by, *arguments) as child:
        child.killed = True  # its exit status is what these tests look at
        child.first = child.hear()  # type: ignore[attr-defined]
        yield child


def status_of(child: Child) -> int:
    status: int = child.process.wait(25)
    return status


def take_its_lock(name: str) -> None:
    """The session that holds it is ended: somebody else may have the lock from now on."""
    (session,) = holders("postgres", name)
    end_session("postgres", session)


def said(child: Child) -> str:
    return "".join(child._errors)


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 128 + 9),
        (["sh", "-c", "kill -HUP $PPID; exec sleep 60"], 128 + 1),  # signals to us are passed on
        (["no-such-program-of-ours"], 127),
        (["/etc/passwd"], 126),
        (["sh", "-c", 'test "$1" = -- -a "$2" = --ttl', "sh", "--", "--ttl"], 0),  # its own arguments stay its own
    ],
)
def test_the_exit_status_is_that_of_the_program(command: list[str], status: int, name: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert call("run", name, "--using", "leasetable", "--", *command)[0] == status
    assert signal.getsignal(signal.SIGTERM) is before
    assert not [info for info in held_locks("leasetable")[0].locks if info.name == name]


def test_busy_is_a_temporary_failure(name: str, tmp_path: Path) -> None:
    touch = ["--", "touch", str(tmp_path / "ran")]
    lease = advisory_lock(name, using="postgres", shared=True).acquire()
    known = ["run", name, "--using", "postgres"]
    # in another context: this thread may take again what it holds
    assert call_elsewhere(*known, *touch) == BUSY
    assert call_elsewhere(*known, "--timeout", "1", *touch) == BUSY
    assert not (tmp_path / "ran").exists()
    assert call_elsewhere(*known, "--shared", "--", "true") == 0
    lease.release()
    assert call_elsewhere(*known, "--timeout", "none", *touch) == 0
    assert (tmp_path / "ran").exists()


def call_elsewhere(*arguments: str) -> int:
    with Child(run, *arguments[1:]) as child:
        child.killed = True
        return status_of(child)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("x --using down -- true", UNAVAILABLE, "down"),
        ("x --ttl 5 --using postgres -- true", 1, "ttl"),
        ("x --shared --using mysql -- true", 1, "share"),
    ],
)
def test_what_cannot_work_is_said(arguments: str, status: int, message: str, settings: Any) -> None:
    settings.DISTLOCK = {**settings.DISTLOCK, "down": DOWN}
    found = call("run", *arguments.split())
    assert found[0] == status
    assert message in found[2]


@pytest.mark.tier2
@pytest.mark.parametrize("using", ["leasetable", "postgres", "mysql"])
def test_others_are_kept_out_while_it_runs(using: str, name: str) -> None:
    """And it is listed by name at once, though an engine keeps only a hash, and the process has looked at nothing."""
    with running(name, "--using", using, "--", *WAITS, by=run_unseen) as child:
        assert advisory_lock(name, using=using).try_acquire() is None

        def holders_of_name() -> list[str]:
            return [info.holder or "" for info in held_locks(using)[0].locks if info.name == name]

        eventually(holders_of_name, "it is listed by its hash")
        assert f":{child.process.pid}:MainThread" in holders_of_name()[0]
        child.signal(signal.SIGTERM)
        assert status_of(child) == 128 + signal.SIGTERM
    advisory_lock(name, using=using, timeout=5).acquire().release()


@contextlib.contextmanager
def once(ready: Path, act: Callable[[], object]) -> Iterator[None]:
    """Do it as soon as the program runs, which makes this file."""

    def wait_and_act() -> None:
        eventually(ready.exists, "it does not run")
        act()
        connections.close_all()  # of this thread

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize(
    ("trap", "grace", "expected"),
    [
        ("exit 5", "60", 5),
        ("exit 0", "60", UNAVAILABLE),  # who ends well without its lock has failed
        ("", "0.2", 128 + signal.SIGKILL),
    ],
)
def test_a_program_whose_lock_is_lost_is_ended(trap: str, grace: str, expected: int, name: str, tmp_path: Path) -> None:
    """TERM, and KILL for it and its descendants after the grace time."""
    script = f"trap '{trap}' TERM; touch {tmp_path / 'ready'}; while :; do sleep 0.02; done"
    with once(tmp_path / "ready", lambda: take_its_lock(name)):
        status, _, err = call("run", name, "--using", "postgres", "--grace", grace, "--", "sh", "-c", script)
    assert status == expected
    assert "was lost" in err


@pytest.mark.tier2
def test_a_program_whose_lock_cannot_be_renewed_is_ended_in_time(name: str, proxied: Proxied, tmp_path: Path) -> None:
    """A quarter of the TTL before somebody else may have the lock."""
    proxy, ended = proxied("leasetable_postgres"), tmp_path / "ended"
    script = f"trap 'touch {ended}; exit 5' TERM; touch {tmp_path / 'ready'}; while :; do sleep 0.02; done"
    began = time.time()
    with once(tmp_path / "ready", proxy.blackhole):
        known = [name, "--using", "leasetable_postgres", "--ttl", "2"]
        status, _, err = call("run", *known, "--", "sh", "-c", script)
    assert status == 5
    assert "could not be renewed" in err
    # it may have been renewed once more before the server fell silent
    within(ended.stat().st_mtime - began, 3.0, least=0.6)


@pytest.mark.tier2
def test_descendants_do_not_outlive_the_lock(name: str) -> None:
    """The program ends at TERM, what it has started does not."""
    script = "(trap '' TERM; exec sh -c 'echo $$; sleep 60') & wait"
    with running(name, "--using", "postgres", "--grace", "0.2", "--", "sh", "-c", script) as child:
        take_its_lock(name)
        status_of(child)
        eventually(lambda: not runs(child.first), "it lives on")  # type: ignore[attr-defined]


# As sudo does it: a descendant, or the program itself, runs as another user than `distlock run`.
WITH_FOREIGN_CHILD = f"""
import os, subprocess
child = subprocess.Popen(["sleep", "60"])
os.setuid({NOBODY})
print(child.pid, flush=True)
os.execvp("sleep", ["sleep", "60"])
"""
FOREIGN = ["sh", "-c", "echo $$; exec sleep 60"]


@pytest.mark.tier2
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("itself", [False, True], ids=["descendant", "program"])
def test_a_process_of_another_user_is_no_traceback(name: str, itself: bool) -> None:
    """It cannot be ended: the program is waited for, a descendant changes no status. Naive code meets
    PermissionError: a traceback, and the status 1."""
    command = FOREIGN if itself else [sys.executable, "-c", WITH_FOREIGN_CHILD]
    known = [name, "--using", "postgres", "--grace", "0.2", "--", *command]
    with running(*known, by=run_and_become_another) as child:
        foreign: int = child.first  # type: ignore[attr-defined]
        try:
            child.say("become another")
            assert child.hear() == "become"
            take_its_lock(name)
            eventually(lambda: "as another user" in said(child), "nobody is told")
            if itself:
                assert runs(foreign)
                os.kill(foreign, signal.SIGKILL)
            assert status_of(child) == 128 + (signal.SIGKILL if itself else signal.SIGTERM)
            assert itself or runs(foreign)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(foreign, signal.SIGKILL)
    assert "was lost" in said(child)
    assert "Traceback" not in said(child)
