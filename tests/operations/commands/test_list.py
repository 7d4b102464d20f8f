"""``manage.py distlock``: its arguments; ``list``, in which nothing can do harm; what ``prune`` reaches."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from django_distlock import BackendUnavailable, LockLost, advisory_lock
from django_distlock.models import IdempotencyRecord, LockEvent
from django_distlock.operations.commands import listing
from django_distlock.operations.pruning import prune
from tests.faults.conftest import BACKENDS
from tests.operations.world import CANARY, DOWN, MEMORY, UNAVAILABLE, WRONG, Terminal, call, manage, without_table

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("databases")

HOSTILE = "a\x1b[31m\r\nb\u202e\u2028\x9b<script>\x00"
SHOWN = r"a\x1b[31m\r\nb\u202e\u2028\x9b<script>\x00"


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("list {} {}", 0),
        ("run a-name {} {} -- true", 0),
        ("break a-name {} --yes {}", 1),
        ("doctor {} {}", 0),
        ("prune {} {}", 0),
        ("migrate --plan {} {}", 0),
    ],
)
def test_subcommands_take_arguments_of_django_and_known_aliases(
    command: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    everywhere = "--settings tests.settings --pythonpath . -v 2 --traceback --no-color"
    assert manage(*command.format("--using leasetable_postgres", everywhere).split()) == status
    assert "unrecognized" not in capfd.readouterr().err
    assert manage(*command.format("--using nowhere", "").split()) == WRONG
    assert "There is no lock backend 'nowhere' in DISTLOCK. Known: 'default'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run x --timeout -1 -- true", """'-1' is not a number of seconds, at least 0, nor "none"."""),
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


def test_json_has_stable_keys(name: str) -> None:
    with advisory_lock(name, using="redis"):
        status, out, _ = call("list", "--using", "redis")
    document = json.loads(out)
    assert (status, list(document)) == (0, ["at", "backends"])
    (report,) = document["backends"]
    assert list(report) == ["alias", "backend", "error", "locks"]
    keys = "name key shared holder acquired_at expires_at fence waiters_at_least waiting details"
    (mine,) = [lock for lock in report["locks"] if lock["name"] == name]
    assert list(mine) == keys.split()
    for moment in (document["at"], mine["acquired_at"], mine["expires_at"]):
        assert datetime.fromisoformat(moment).tzinfo is not None


def test_names_cannot_steer_the_terminal() -> None:
    """Neither in the list nor in what is shown before a lock is broken."""
    with suppress(LockLost), advisory_lock(HOSTILE, using="redis"):
        assert call("list", "--using", "redis")[1].isascii()
        for command in (["list", "--table"], ["break", HOSTILE, "--yes"]):
            _, out, _ = call(*command, "--using", "redis")
            assert all(char.isprintable() for char in out.replace("\n", ""))
            assert any(SHOWN[:11] in line for line in out.splitlines())


def test_what_is_lost_with_a_session_is_shown_before_it_is_ended(name: str) -> None:
    with suppress(LockLost), advisory_lock(name, using="postgres"), advisory_lock(f"{name}-too", using="postgres"):
        _, out, _ = call("break", name, "--using", "postgres", "--yes")
        assert "ends the whole database session and rolls its transaction back; it also holds: " in out


def test_a_backend_that_is_down_is_a_line(settings: Any) -> None:
    settings.DISTLOCK = {"default": MEMORY, "down": DOWN}
    status, out, _ = call("list", "--table")
    assert (status, out) == (0, "Nothing is held.\ndown: its locks cannot be listed: ConnectionError\n")
    (_, report) = json.loads(call("list")[1])["backends"]
    assert (report["error"], report["locks"]) == ("ConnectionError", [])
    status, out, err = call("list", "--using", "down")
    assert (status, CANARY in out + err) == (UNAVAILABLE, False)


@pytest.mark.parametrize("out", [io.StringIO, Terminal])
def test_watch_goes_on_until_control_c(monkeypatch: pytest.MonkeyPatch, out: type[io.StringIO], settings: Any) -> None:
    """A table in a terminal, JSON in a pipe."""
    settings.DISTLOCK = {"default": MEMORY}
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(listing.time, "sleep", wait)
    status, text, err = call("list", "--watch", "0.5", out=out())
    assert (status, err, waited) == (0, "", [0.5] * 3)
    if out is Terminal:
        assert text.split("\x1b[H\x1b[2J") == ["", *["Nothing is held.\n"] * 3]
    else:
        assert [len(json.loads(line)["backends"]) for line in text.splitlines()] == [1] * 3


# --- prune, and what dumpdata leaves out

LOST = {"alias": "a", "digest": "d", "name": "canary", "kind": "lost", "reason": "", "holder": ""}
KEPT = {"scope": "s", "state": "completed", "answer": b"canary", "claimed_at": 0, "expires_at": 0, "lives_until": 0}


@pytest.fixture
def records() -> Iterator[None]:
    """An event of ten days ago and one of fifty, and an answer that nobody can ask for any more."""
    for days in (10, 50):
        LockEvent.rows.create(at=datetime.now(UTC) - timedelta(days=days), **LOST)
    IdempotencyRecord.rows.create(**KEPT)
    yield
    for model in (LockEvent, IdempotencyRecord):
        model.rows.all().delete()


@pytest.mark.parametrize(("kept", "deleted"), [(None, 1), (90, 0), (5, 2)])
def test_events_go_when_their_setting_says(settings: Any, records: None, kept: int | None, deleted: int) -> None:
    """Who keeps the history for ninety days does not lose it to a nightly `prune` with its thirty."""
    settings.DISTLOCK = {"leasetable": settings.DISTLOCK["leasetable"]}
    with override_settings(DISTLOCK_HISTORY_DAYS=kept):
        assert prune(days=30)["events"] == deleted
    for wrong in (-1, float("nan"), "30", None):
        with pytest.raises((TypeError, ValueError), match="days"):
            prune(days=wrong)  # type: ignore[arg-type]


def test_what_is_down_or_missing_keeps_nothing_else_from_being_pruned(settings: Any, records: None) -> None:
    nowhere = {"BACKEND": BACKENDS["postgres"], "OPTIONS": {"database": "default"}}  # SQLite
    settings.DISTLOCK = {"nowhere": nowhere, "leasetable": settings.DISTLOCK["leasetable"]}
    with pytest.raises(Exception, match="no such table"):
        prune(days=30)
    assert (LockEvent.rows.count(), IdempotencyRecord.rows.count()) == (1, 0)
    settings.DISTLOCK = {}
    with without_table("default", LockEvent):
        with pytest.raises(BackendUnavailable, match="events"):
            prune(days=30)
        status, _, err = call("prune")
    assert (status, "events" in err) == (UNAVAILABLE, True)


@pytest.mark.parametrize("setting", ["DISTLOCK_BROWSER", "DISTLOCK_EDITING"])
def test_a_wrong_setting_keeps_nothing_else_from_being_pruned(settings: Any, records: None, setting: str) -> None:
    settings.DISTLOCK = {}
    setattr(settings, setting, {"TLL": 5})
    status, out, err = call("prune")
    assert (status, f"{setting} has the unknown key 'TLL'" in err) == (1, True)
    assert "events: 1 deleted" in out
    assert (LockEvent.rows.count(), IdempotencyRecord.rows.count()) == (1, 0)


def test_dumpdata_leaves_out_the_site_key_stored_answers_and_the_history(records: None) -> None:
    """Who asked for what, and what he got: of no use elsewhere, and none of the business of who reads a fixture."""
    for everything in (False, True):
        out = io.StringIO()
        call_command("dumpdata", "django_distlock", use_base_manager=everything, stdout=out)
        assert json.loads(out.getvalue()) == []
    assert LockEvent.rows.count() == 2
