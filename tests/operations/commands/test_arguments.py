"""``manage.py distlock``: arguments of every Django command after the subcommand; one exit status for wrong ones."""

from __future__ import annotations

import pytest

from tests.operations.commands.calling import WRONG, manage

pytestmark = pytest.mark.usefixtures("databases")

EVERYWHERE = ["--settings", "tests.settings", "--pythonpath", ".", "-v", "2", "--traceback", "--no-color"]
# With an alias that stands for "--using ...".
SUBCOMMANDS = {
    "list": ["list", "USING"],
    "run": ["run", "a-name", "USING"],
    "break": ["break", "a-name", "USING", "--yes"],
    "doctor": ["doctor", "USING"],
    "prune": ["prune", "USING"],
    "migrate": ["migrate", "USING", "--plan"],
}


def filled(subcommand: str, *using: str) -> list[str]:
    return [part for given in SUBCOMMANDS[subcommand] for part in (using if given == "USING" else [given])]


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_each_subcommand_takes_the_arguments_of_django_and_a_known_alias(
    subcommand: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rest = ["--", "true"] if subcommand == "run" else []
    alias = ["--using", "leasetable_postgres"]
    assert manage(*filled(subcommand, *alias), *EVERYWHERE, *rest) == (1 if subcommand == "break" else 0)
    assert "unrecognized" not in capfd.readouterr().err
    assert manage(*filled(subcommand, "--using", "nowhere"), *rest) == WRONG
    assert "There is no lock backend 'nowhere' in DISTLOCK. Known: 'default'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "run x --timeout -1 -- true",
            """'-1' is not a number of seconds, at least 0, nor "none".""",
        ),
        ("run x --timeout soon -- true", "--timeout: 'soon' is not a number of seconds, at least 0"),
        ("run x --ttl 0 -- true", "--ttl: '0' is not a number of seconds, above 0."),
        ("run x --grace inf -- true", "--grace: 'inf' is not a number of seconds, at least 0."),
        ("run x", "required: command"),
        ("list --watch nan", "--watch: 'nan' is not a number of seconds, above 0."),
        ("list --json --table", "not allowed with"),
        ("list --no-such-thing", "--no-such-thing"),
        ("prune --days=-1", "--days: '-1' is not a number of days, at least 0."),
        ("break", "Give the name of the lock, or --key."),
        ("break x --key y", "Give the name of the lock, or --key."),
        ("break x --all --holder 1", "not allowed with"),
        ("edits --database nowhere", "nowhere"),
    ],
)
def test_wrong_arguments_have_one_exit_status(arguments: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert manage(*arguments.split()) == WRONG
    assert message in capfd.readouterr().err
