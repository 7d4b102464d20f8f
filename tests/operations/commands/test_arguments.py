"""``manage.py distlock``: arguments of every Django command after the subcommand; one exit status for wrong ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.core.management import execute_from_command_line

from django_distlock.management.commands.distlock import SUBCOMMANDS

pytestmark = pytest.mark.usefixtures("databases")

EVERYWHERE = ["--settings", "tests.settings", "--pythonpath", ".", "-v", "2", "--traceback", "--no-color"]
WRONG = 2


def manage(*arguments: str) -> int:
    """In this process; the exit status."""
    try:
        execute_from_command_line(["manage.py", "distlock", *arguments])
    except SystemExit as error:
        return int(error.code or 0)
    return 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--using", "memory"],
        ["run", "a-name", "--using", "leasetable"],
        ["break", "a-name", "--using", "memory", "--yes"],
        ["doctor", "--using", "memory"],
        ["prune", "--using", "memory"],
        ["migrate", "--database", "default", "--plan"],
    ],
)
def test_arguments_of_every_command_stand_after_the_subcommand(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    rest = ["--", "true"] if arguments[0] == "run" else []
    assert manage(*arguments, *EVERYWHERE, *rest) == (1 if arguments[0] == "break" else 0)
    assert "unrecognized" not in capfd.readouterr().err


def test_the_settings_are_taken_from_there() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-m", "django", "distlock"]
    wanted = ["--settings", "tests.settings"]
    told = []
    for arguments in (["list", *wanted], [*wanted, "list"]):
        done = subprocess.run(
            [*command, *arguments, "--using", "nowhere"], env=environment, capture_output=True, text=True, timeout=60
        )
        told.append((done.returncode, done.stderr))
    assert told[0] == told[1]
    status, message = told[0]
    assert status == WRONG
    assert "There is no lock backend 'nowhere' in DISTLOCK. Known:" in message


# Edit locks and browser locks are in databases, and behind no alias of DISTLOCK.
@pytest.mark.parametrize("subcommand", [name for name in SUBCOMMANDS if name not in ("edits", "browser")])
def test_an_alias_that_is_not_configured_is_a_wrong_argument(
    subcommand: str, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {"run": ["x", "--using", "nowhere", "--", "true"], "break": ["x", "--using", "nowhere", "--yes"]}
    assert manage(subcommand, *given.get(subcommand, ["--using", "nowhere"])) == WRONG
    assert "There is no lock backend 'nowhere' in DISTLOCK. Known: 'default'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "x", "--timeout", "-1", "--", "true"],
            """--timeout: '-1' is not a number of seconds, at least 0, nor "none".""",
        ),
        (["run", "x", "--timeout", "soon", "--", "true"], "--timeout: 'soon' is not a number of seconds, at least 0"),
        (["run", "x", "--ttl", "0", "--", "true"], "--ttl: '0' is not a number of seconds, above 0."),
        (["run", "x", "--grace", "inf", "--", "true"], "--grace: 'inf' is not a number of seconds, at least 0."),
        (["run", "x"], "required: command"),
        (["run", "", "--", "true"], "name"),
        (["migrate", "--timeout", "-2"], "--timeout: '-2' is not a number of seconds, at least 0"),
        (["list", "--watch", "nan"], "--watch: 'nan' is not a number of seconds, above 0."),
        (["prune", "--days", "-1"], "--days: '-1' is not a number of days, at least 0."),
        (["break"], "Give the name of the lock, or --key."),
        (["list", "--no-such-thing"], "--no-such-thing"),
    ],
)
def test_wrong_arguments_have_one_exit_status(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert manage(*arguments) == WRONG
    assert message in capfd.readouterr().err


def test_a_database_that_is_not_configured_is_a_wrong_argument(capfd: pytest.CaptureFixture[str]) -> None:
    assert manage("edits", "--database", "nowhere") == WRONG
    assert "nowhere" in capfd.readouterr().err
