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
from tests.operations.programs import NOBODY, run, run_and_become_another, run_unseen
from tests.operations.world import BUSY, DOWN, UNAVAILABLE, call
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faults.conftest import Proxied

__all__ = ["proxied"]
pytestmark = pytest.mark.usefixtures("databases")


@contextlib.contextmanager
def running(*arguments: str, by: Callable[..., Any] = run) -> Iterator[Child]:
    """Another process that runs a program; its exit status is what these tests look at."""
    with Child(by, *arguments) as child:
        child.killed = True
        yield child


def status_of(*arguments: str) -> int:
    with running(*arguments) as child:
        return int(child.process.wait(25))


def take_its_lock(name: str) -> None:
    """The session that holds it is ended: somebody else may have the lock from now on."""
    (session,) = holders("postgres", name)
    end_session("postgres", session)


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
    assert call("run", "--using", "leasetable", name, "--", *command)[0] == status
    assert signal.getsignal(signal.SIGTERM) is before
    assert not [info for info in held_locks("leasetable")[0].locks if info.name == name]


def test_busy_is_a_temporary_failure(name: str, tmp_path: Path) -> None:
    """In another process: this thread may take again what it holds."""
    known, touch = [name, "--using", "postgres"], ["--", "touch", str(tmp_path / "ran")]
    with advisory_lock(name, using="postgres", shared=True):
        assert status_of(*known, *touch) == BUSY
        assert status_of(*known, "--timeout", "1", *touch) == BUSY
        assert not (tmp_path / "ran").exists()
        assert status_of(*known, "--shared", "--", "true") == 0
    assert status_of(*known, "--timeout", "none", *touch) == 0
    assert (tmp_path / "ran").exists()


def test_what_cannot_work_is_said(settings: Any) -> None:
    settings.DISTLOCK = {**settings.DISTLOCK, "down": DOWN}
    for arguments, status, message in (
        ("x --using down -- true", UNAVAILABLE, "down"),
        ("x --ttl 5 --using postgres -- true", 1, "ttl"),
        ("x --shared --using mysql -- true", 1, "share"),
    ):
        found, _, err = call("run", *arguments.split())
        assert (found, message in err) == (status, True)


@pytest.mark.tier2
@pytest.mark.parametrize("using", ["leasetable", "postgres", "mysql"])
def test_others_are_kept_out_while_it_runs(using: str, name: str) -> None:
    """And it is listed by name at once, though an engine keeps only a hash, and the process has looked at nothing."""
    command = ["sh", "-c", "echo 1; exec sleep 60"]
    with running(name, "--using", using, "--", *command, by=run_unseen) as child:
        child.hear()
        assert advisory_lock(name, using=using).try_acquire() is None

        def is_named() -> bool:
            holders = [info.holder or "" for info in held_locks(using)[0].locks if info.name == name]
            return [f":{child.process.pid}:MainThread" in holder for holder in holders] == [True]

        eventually(is_named, "it is listed by its hash, or without its holder")
        child.signal(signal.SIGTERM)
        assert child.process.wait(25) == 128 + signal.SIGTERM
    advisory_lock(name, using=using, timeout=5).acquire().release()


def trapped(folder: Path, trap: str, act: Callable[[], object], *arguments: str) -> tuple[int, str]:
    """Run a program that does ``trap`` at TERM, and act as soon as it runs; the exit status, and what was said."""
    ready = folder / "ready"

    def wait_and_act() -> None:
        eventually(ready.exists, "it does not run")
        act()
        connections.close_all()  # of this thread

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    script = f"trap '{trap}' TERM; touch {ready}; while :; do sleep 0.02; done"
    status, _, err = call("run", *arguments, "--", "sh", "-c", script)
    thread.join()
    return status, err


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
    known = [name, "--using", "postgres", "--grace", grace]
    status, err = trapped(tmp_path, trap, lambda: take_its_lock(name), *known)
    assert (status, "was lost" in err) == (expected, True)


@pytest.mark.tier2
def test_a_program_whose_lock_cannot_be_renewed_is_ended_in_time(name: str, proxied: Proxied, tmp_path: Path) -> None:
    """A quarter of the TTL before somebody else may have the lock."""
    proxy, ended, began = proxied("leasetable_postgres"), tmp_path / "ended", time.time()
    known = [name, "--using", "leasetable_postgres", "--ttl", "2"]
    status, err = trapped(tmp_path, f"touch {ended}; exit 5", proxy.blackhole, *known)
    assert (status, "could not be renewed" in err) == (5, True)
    # it may have been renewed once more before the server fell silent
    within(ended.stat().st_mtime - began, 3.0, least=0.6)


@pytest.mark.tier2
def test_descendants_do_not_outlive_the_lock(name: str) -> None:
    """The program ends at TERM, what it has started does not."""
    script = "(trap '' TERM; exec sh -c 'echo $$; sleep 60') & wait"
    with running(name, "--using", "postgres", "--grace", "0.2", "--", "sh", "-c", script) as child:
        descendant = child.hear()
        take_its_lock(name)
        child.process.wait(25)
        eventually(lambda: not runs(descendant), "it lives on")


# As sudo does it: a descendant, or the program itself, runs as another user than `distlock run`.
WITH_FOREIGN_CHILD = f"""
import os, subprocess
child = subprocess.Popen(["sleep", "60"])
os.setuid({NOBODY})
print(child.pid, flush=True)
os.execvp("sleep", ["sleep", "60"])
"""


@pytest.mark.tier2
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("itself", [False, True], ids=["descendant", "program"])
def test_a_process_of_another_user_is_no_traceback(name: str, itself: bool) -> None:
    """It cannot be ended: the program is waited for, a descendant changes no status."""
    command = ["sh", "-c", "echo $$; exec sleep 60"] if itself else [sys.executable, "-c", WITH_FOREIGN_CHILD]
    known = [name, "--using", "postgres", "--grace", "0.2", "--", *command]
    with running(*known, by=run_and_become_another) as child:
        foreign = child.hear()
        try:
            child.say("become another")
            assert child.hear() == "become"
            take_its_lock(name)
            eventually(lambda: "as another user" in "".join(child._errors), "nobody is told")
            if itself:
                assert runs(foreign)
                os.kill(foreign, signal.SIGKILL)
            assert child.process.wait(25) == 128 + (signal.SIGKILL if itself else signal.SIGTERM)
            assert itself or runs(foreign)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(foreign, signal.SIGKILL)
    said = "".join(child._errors)
    assert ("was lost" in said, "Traceback" in said) == (True, False)
