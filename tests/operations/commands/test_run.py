"""``manage.py distlock run NAME -- command``: a program under a lock."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command, execute_from_command_line

from django_distlock import advisory_lock, held_locks
from tests.conftest import eventually
from tests.faults.conftest import proxied
from tests.faults.server import end_session, holders
from tests.operations.programs import NOBODY, run, run_and_become_another, run_unseen
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.conftest import Proxied

__all__ = ["proxied"]
pytestmark = pytest.mark.usefixtures("databases")

PATIENCE = 20.0
# Says 1 (JSON, for the pipe of the test), then waits for its end.
WAITS = ["sh", "-c", "echo 1; exec sleep 60"]
STUBBORN = ["sh", "-c", "trap '' TERM; echo 1; sleep 60 & wait; wait; sleep 60"]


def run_program(*arguments: str) -> Child:
    child = Child(run, *arguments)
    child.killed = True  # its exit status is what these tests look at
    return child


def status_of(child: Child) -> int:
    status: int = child.process.wait(PATIENCE)
    return status


def call(*arguments: str) -> int:
    """In this process; the exit status."""
    try:
        call_command("distlock", "run", *arguments, stderr=io.StringIO())
    except SystemExit as error:
        return int(error.code or 0)
    return 0


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 128 + 9),
        (["no-such-program-of-ours"], 127),
        (["/etc/passwd"], 126),
        (["sh", "-c", 'test "$1" = -- -a "$2" = --ttl', "sh", "--", "--ttl"], 0),  # its own arguments stay its own
    ],
)
def test_the_exit_status_is_that_of_the_program(command: list[str], status: int, name: str) -> None:
    assert call(name, "--using", "leasetable", "--", *command) == status


def test_the_program_runs_under_the_lock(using: str, name: str) -> None:
    """On every backend, and the lock is free after it."""
    before = signal.getsignal(signal.SIGTERM)
    assert call(name, "--using", using, "--", "sh", "-c", "exit 3") == 3
    assert signal.getsignal(signal.SIGTERM) is before
    with advisory_lock(name, using=using, timeout=0):
        pass


@pytest.mark.parametrize("using", ["leasetable", "postgres", "mysql"])
def test_others_are_kept_out_while_it_runs(using: str, name: str) -> None:
    with run_program(name, "--using", using, "--", *WAITS) as child:
        assert child.hear() == 1
        assert advisory_lock(name, using=using).try_acquire() is None
        child.signal(signal.SIGTERM)
        assert status_of(child) == 128 + signal.SIGTERM
        with advisory_lock(name, using=using, timeout=0):
            pass


def test_busy_is_a_temporary_failure(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    touch = ["--", "touch", str(marker)]
    with run_program(name, "--using", "leasetable", "--ttl", "5", "--", *WAITS) as child:
        assert child.hear() == 1
        assert call(name, "--using", "leasetable", *touch) == 75
        assert call(name, "--using", "leasetable", "--timeout", "0.1", *touch) == 75
        assert not marker.exists()
        child.signal(signal.SIGINT)
        assert status_of(child) == 128 + signal.SIGINT
    assert call(name, "--using", "leasetable", "--timeout", "none", *touch) == 0
    assert marker.exists()


@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_its_lock_is_listed_by_name_at_once(using: str, name: str) -> None:
    """Though the engine keeps only a hash, and the process has looked at nothing yet."""
    with Child(run_unseen, name, "--using", using, "--", *WAITS) as child:
        child.killed = True
        assert child.hear() == 1

        def holders_of_name() -> list[str]:
            (report,) = held_locks(using)
            return [info.holder or "" for info in report.locks if info.name == name]

        eventually(holders_of_name, "it is listed by its hash")
        assert f":{child.process.pid}:MainThread" in holders_of_name()[0]
        child.process.send_signal(signal.SIGTERM)
        assert status_of(child) == 128 + signal.SIGTERM


def test_shared_holders_run_together(name: str) -> None:
    with run_program(name, "--using", "postgres", "--shared", "--", *WAITS) as child:
        assert child.hear() == 1
        assert call(name, "--using", "postgres", "--shared", "--", "true") == 0
        assert call(name, "--using", "postgres", "--", "true") == 75
        child.signal(signal.SIGHUP)
        assert status_of(child) == 128 + signal.SIGHUP


@pytest.mark.parametrize("command", [WAITS, STUBBORN], ids=["willing", "stubborn"])
def test_a_program_whose_lock_is_lost_is_ended(command: list[str], name: str) -> None:
    """TERM, and KILL for it and its descendants after the grace time."""
    grace = "10" if command is WAITS else "0.3"  # who is willing may need time to die
    with run_program(name, "--using", "postgres", "--grace", grace, "--", *command) as child:
        assert child.hear() == 1
        (session,) = holders("postgres", name)
        end_session("postgres", session)
        ended_by = signal.SIGTERM if command is WAITS else signal.SIGKILL
        assert status_of(child) == 128 + ended_by
        assert "was lost" in "".join(child._errors)


@pytest.mark.tier2
def test_a_program_whose_lock_cannot_be_renewed_is_ended_in_time(
    name: str, proxied: Proxied, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A quarter of the TTL before somebody else may have the lock."""
    proxy, marker, ended = proxied("leasetable_postgres"), tmp_path / "runs", tmp_path / "ended"
    script = f"trap 'touch {ended}; exit 5' TERM; touch {marker}; while :; do sleep 0.02; done"

    def cut_off() -> None:
        eventually(marker.exists, "it does not run")
        proxy.blackhole()

    thread = threading.Thread(target=cut_off)
    thread.start()
    began = time.time()
    options = ["--using", "leasetable_postgres", "--ttl", "1.2"]
    with pytest.raises(SystemExit) as status:
        execute_from_command_line(["manage.py", "distlock", "run", name, *options, "--", "sh", "-c", script])
    thread.join()
    assert status.value.code == 5
    assert "could not be renewed" in capfd.readouterr().err
    within(ended.stat().st_mtime - began, 1.2, least=0.4)


def test_who_ends_well_without_its_lock_has_failed(name: str) -> None:
    command = ["sh", "-c", "trap 'exit 0' TERM; echo 1; while :; do sleep 0.05; done"]
    with run_program(name, "--using", "postgres", "--", *command) as child:
        assert child.hear() == 1
        (session,) = holders("postgres", name)
        end_session("postgres", session)
        assert status_of(child) == 69


def test_descendants_do_not_outlive_the_lock(name: str, tmp_path: Path) -> None:
    """The program ends at TERM, what it has started does not."""
    pids = tmp_path / "pid"
    script = f"(trap '' TERM; echo $$ > {pids}.tmp; exec sh -c 'echo $$ > {pids}; sleep 60') & sleep 0.1; echo 1; wait"
    with run_program(name, "--using", "postgres", "--grace", "0.2", "--", "sh", "-c", script) as child:
        assert child.hear() == 1
        eventually(pids.exists, "the descendant did not start")
        (session,) = holders("postgres", name)
        end_session("postgres", session)
        status_of(child)
        eventually(lambda: not _runs(int(pids.read_text())), "it lives on")


# As sudo does it: a descendant, or the program itself, runs as another user than `distlock run`.
WITH_FOREIGN_CHILD = f"""
import os, subprocess
child = subprocess.Popen(["sleep", "60"])
os.setuid({NOBODY})
print(child.pid, flush=True)
os.execvp("sleep", ["sleep", "60"])
"""
FOREIGN = ["sh", "-c", "echo $$; exec sleep 60"]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


@contextlib.contextmanager
def run_without_its_lock(name: str, command: list[str]) -> Iterator[tuple[Child, int]]:
    """A process that has lost its lock, as another user than the program; and the process that it cannot end."""
    arguments = [name, "--using", "postgres", "--grace", "0.2", "--", *command]
    with Child(run_and_become_another, *arguments) as child:
        child.killed = True
        foreign = child.hear()
        try:
            child.say("become another")
            assert child.hear() == "become"
            (session,) = holders("postgres", name)
            end_session("postgres", session)
            yield child, foreign
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(foreign, signal.SIGKILL)


@as_root
def test_a_descendant_of_another_user_changes_no_status(name: str) -> None:
    """It cannot be ended. Naive code meets PermissionError: a traceback, and the status 1."""
    with run_without_its_lock(name, [sys.executable, "-c", WITH_FOREIGN_CHILD]) as (child, foreign):
        assert status_of(child) == 128 + signal.SIGTERM
        assert _runs(foreign)
    errors = "".join(child._errors)
    assert "was lost" in errors
    assert "as another user" in errors
    assert "Traceback" not in errors


@as_root
def test_a_program_of_another_user_is_waited_for(name: str) -> None:
    with run_without_its_lock(name, FOREIGN) as (child, foreign):
        eventually(lambda: "as another user" in "".join(child._errors), "nobody is told")
        assert _runs(foreign)
        os.kill(foreign, signal.SIGKILL)
        assert status_of(child) == 128 + signal.SIGKILL


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_signals_before_the_program_runs_reach_it_too(name: str) -> None:
    from django_distlock.operations.commands.run import Program

    program = Program(["sleep", "60"])
    with program.forwarding_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        program.start()
        eventually(lambda: program.wait(0.05) is not None, "it runs on")
        assert program.wait(1) == 128 + signal.SIGTERM


def test_a_server_that_does_not_answer(name: str, proxied: Proxied) -> None:
    proxied("leasetable_postgres").blackhole()
    with pytest.raises(CommandError) as error:
        call(name, "--using", "leasetable_postgres", "--", "true")
    assert error.value.returncode == 69


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--using", "nowhere", "--", "true"], "nowhere"),
        (["", "--", "true"], "name"),
        (["x", "--ttl", "0", "--", "true"], "ttl"),
        (["x", "--ttl", "5", "--using", "postgres", "--", "true"], "ttl"),
        (["x", "--shared", "--using", "mysql", "--", "true"], "share"),
        (["x", "--timeout", "-1", "--", "true"], "timeout"),
        (["x", "--timeout", "soon", "--", "true"], "--timeout"),
        (["x", "--grace", "-1", "--", "true"], "--grace"),
        (["x", "--using", "leasetable"], "required: command"),
        (["x"], "required: command"),
    ],
)
def test_what_cannot_work_is_said(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        call(*arguments)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["run", "--help"]):
        with pytest.raises(SystemExit):
            execute_from_command_line(["manage.py", "distlock", *arguments])
    out = " ".join(capsys.readouterr().out.split())
    assert "Run a program while holding a lock." in out
    assert "75 if the lock is busy" in out
    with pytest.raises(CommandError, match="required: subcommand"):
        call_command("distlock")
