"""The command line: ``python -m tests.support.services``."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from signal import SIGHUP, SIGINT, SIGTERM
from signal import signal as on_signal
from typing import TYPE_CHECKING

from tests.support import services
from tests.support.services.compose import containers_up
from tests.support.services.files import processes_path, read_json, state_path, write_json
from tests.support.services.process import ServicesError

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = "usage: python -m tests.support.services up | down | status | run COMMAND... | compose [mariadb | mysql]"


def main(arguments: Sequence[str]) -> int:
    try:
        match list(arguments):
            case ["up"]:
                services.up()
                return print_status()
            case ["down"]:
                stop_everything()
                return 0
            case ["status"]:
                return print_status()
            case ["run", *command] if command:
                return run(command)
            case ["compose", *database] if database in ([], ["mariadb"], ["mysql"]):
                return compose(*database)
    except ServicesError as error:
        print(f"services: {error}", file=sys.stderr)
        return 1
    print(USAGE, file=sys.stderr)
    return 2


def print_status() -> int:
    """One line per server; exit status 1 if one of them, or all, are down."""
    rows = services.status()
    if not rows:
        print(f"no servers: {state_path()} is absent")
        return 1
    for name, address, condition in rows:
        print(f"{name:10} {address:16} {condition}")
    return int(any(not services.is_running(name) or "does not answer" in condition for name, _, condition in rows))


def compose(database: str = "mariadb") -> int:
    """Run the servers of compose.yaml instead of private ones, with `database` in MariaDB's place."""
    if processes_path().exists():
        raise ServicesError("private servers are running: `make services-down` first")
    write_json(state_path(), containers_up(read_json(state_path()), database))
    return print_status()


def run(command: Sequence[str]) -> int:
    """Run a command with the servers up and return its exit status.

    They are stopped afterwards whatever happens, unless `up` had been asked for, or another `run` still uses them.
    """
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: object) -> None:
        if child is None:
            raise SystemExit(128 + number)
        if number != SIGINT:  # the terminal has sent Ctrl-C to the child as well
            child.send_signal(number)

    for number in (SIGINT, SIGTERM, SIGHUP):
        on_signal(number, forward)
    users = state_path().with_suffix(".users")
    users.parent.mkdir(parents=True, exist_ok=True)
    with users.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            services.up(keep=False)
            child = subprocess.Popen(command)
            code = child.wait()
        finally:
            _stop_if_last(file.fileno())
    return code if code >= 0 else 128 - code


def _stop_if_last(users: int) -> None:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if not read_json(processes_path()).get("keep", True):
        stop_everything()


def stop_everything() -> None:
    """The servers, and those of test processes (tests/support/workers.py) that did not come to stop theirs."""
    for left in state_path().parent.glob("gw*/state.processes.json"):
        environment = {**os.environ, "DISTLOCK_SERVICES": str(left.with_name("state.json"))}
        subprocess.run([sys.executable, "-m", "tests.support.services", "down"], env=environment, check=False)
    services.down()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
