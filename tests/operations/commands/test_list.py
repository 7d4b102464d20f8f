"""``manage.py distlock list``: what they show, and that nothing in it can do harm."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_distlock import advisory_lock, held_locks
from django_distlock.concurrency.text import one_line
from django_distlock.operations.commands import listing
from django_distlock.operations.commands.base import encodable
from django_distlock.operations.commands.listing import cells, described, fitted, table
from django_distlock.records import BackendReport, LockInfo

pytestmark = pytest.mark.usefixtures("databases")

HOSTILE = "a\x1b[31m\r\nb\u202e\u2028\x9b<script>\x00"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CANARY = "canary-of-a-password"
DOWN = {
    "BACKEND": "django_distlock.backends.redis.RedisBackend",
    "OPTIONS": {"url": f"redis://:{CANARY}@127.0.0.1:1/0"},
}
MEMORY = {"BACKEND": "django_distlock.backends.memory.MemoryBackend"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def call(*arguments: str, out: io.StringIO | None = None) -> tuple[int, str, str]:
    """The exit status, and what was said on stdout and on stderr."""
    out, err = out or io.StringIO(), io.StringIO()
    try:
        call_command("distlock", *arguments, stdout=out, stderr=err, no_color=True)
    except SystemExit as error:
        return int(error.code or 0), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


@pytest.fixture
def down(settings: Any) -> None:
    settings.DISTLOCK = {"default": MEMORY, "down": DOWN}


def test_json_has_stable_keys(using: str, name: str) -> None:
    with advisory_lock(name, using=using):
        status, out, _ = call("list", "--using", using)
    assert status == 0
    document = json.loads(out)
    assert list(document) == ["at", "backends"]
    assert datetime.fromisoformat(document["at"]).tzinfo is not None
    (report,) = document["backends"]
    assert list(report) == ["alias", "backend", "error", "locks"]
    assert (report["alias"], report["error"]) == (using, None)
    keys = "name key shared holder acquired_at expires_at fence waiters_at_least waiting details"
    assert {tuple(lock) for lock in report["locks"]} == {tuple(keys.split())}
    (mine,) = [lock for lock in report["locks"] if lock["name"] == name]
    for moment in filter(None, (mine["acquired_at"], mine["expires_at"])):
        assert datetime.fromisoformat(moment).tzinfo is not None


def test_a_table_in_a_terminal_and_json_in_a_pipe(name: str) -> None:
    with advisory_lock(name, using="leasetable"):
        assert json.loads(call("list")[1])
        assert call("list", out=Terminal())[1].startswith("ALIAS ")
        assert call("list", "--table")[1].startswith("ALIAS ")
        assert json.loads(call("list", "--json", out=Terminal())[1])
    with pytest.raises(CommandError, match="not allowed with"):
        call("list", "--json", "--table")


@pytest.mark.parametrize("using", ["leasetable", "redis", "zookeeper", "memory"])
def test_names_cannot_steer_the_terminal(using: str) -> None:
    with advisory_lock(HOSTILE, using=using):
        _, out, _ = call("list", "--using", using, "--table")
        (report,) = held_locks(using)  # with what tests before this one have lost on purpose
        assert call("list", "--using", using)[1].isascii()
    assert all(char.isprintable() for char in out.replace("\n", ""))
    assert out.count("\n") == 1 + len(report.locks)
    assert r"a\x1b[31m\r" in out


def test_the_table_fits_the_terminal() -> None:
    info = LockInfo(
        backend="default",
        key="k",
        name="日本語" * 40,
        holder="host:1:" + "thread" * 30,
        acquired_at=NOW - timedelta(days=2, hours=3),
        expires_at=NOW - timedelta(seconds=1),
        fence=2**60,
        waiters=3,
    )
    reports = [BackendReport(alias="default", backend="B", locks=(info, LockInfo(backend="default", key="17")))]
    for width in (100, 120):
        lines = table(reports, NOW, width).splitlines()
        assert {cells(line) <= width for line in lines} == {True}
        assert "2d3h" in lines[1]
        assert " 0s " in lines[1]
        assert "key 17" in lines[2]
    assert table([BackendReport(alias="a", backend="B")], NOW) == "Nothing is held."
    assert all(cells(line) < 1000 for line in table(reports, NOW, 1000).splitlines())
    relation = LockInfo(backend="default", key="r", name="t", details={"kind": "row", "mode": "X"})
    assert " X " in table([BackendReport(alias="default", backend="B", locks=(relation,))], NOW)


@pytest.mark.parametrize("text", ["plain", "Ünïcödé", "日本語", "é"])
def test_what_prints_is_left_alone(text: str) -> None:
    assert one_line(text) == text
    assert cells(fitted(text, 5)) == 5
    assert fitted(text + "x" * 9, 5).rstrip().endswith("…")


def test_what_does_not_print_is_shown() -> None:
    assert one_line("\x1b\r\n\t\u202e\u2066\ud800\x9b\x7f") == r"\x1b\r\n\t\u202e\u2066\ud800\x9b\x7f"
    assert encodable("é日", "latin-1") == "é\\u65e5"
    assert encodable("日", None) == "日"


@pytest.mark.usefixtures("down")
def test_a_backend_that_is_down_is_a_line() -> None:
    status, out, _ = call("list", "--table")
    assert (status, out) == (0, "Nothing is held.\ndown: its locks cannot be listed: ConnectionError\n")
    (_, report) = json.loads(call("list")[1])["backends"]
    assert (report["error"], report["locks"]) == ("ConnectionError", [])
    status, out, err = call("list", "--using", "down")
    assert status == 69
    assert CANARY not in out + err


@pytest.mark.parametrize("out", [io.StringIO, Terminal])
def test_watch_goes_on_until_control_c(monkeypatch: pytest.MonkeyPatch, out: type[io.StringIO]) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(listing.time, "sleep", sleep)
    status, text, err = call("list", "--using", "memory", "--watch", "0.5", out=out())
    assert (status, err, slept) == (0, "", [0.5] * 3)
    if out is Terminal:
        assert text.split("\x1b[H\x1b[2J") == ["", *["Nothing is held.\n"] * 3]
    else:
        assert [len(json.loads(line)["backends"]) for line in text.splitlines()] == [1] * 3


def test_a_reader_that_has_seen_enough() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    assert call("list", "--using", "memory", "--watch", out=Closed())[0] == 0


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "nan", "x"])
def test_watch_takes_seconds(seconds: str) -> None:
    with pytest.raises(CommandError, match="--watch"):
        call("list", f"--watch={seconds}")


def test_everything_is_shown() -> None:
    info = LockInfo(
        backend="a",
        key="k",
        name=HOSTILE,
        holder="h\x1b",
        acquired_at=NOW - timedelta(seconds=61),
        fence=7,
        waiters=2,
        waiting=("w1", "w\n2"),
        details={"pid": "7", "also_holds": "other", "collision": "twin"},
    )
    assert described(info, NOW) == [
        "a: " + one_line(HOSTILE),
        r"  held by h\x1b, since 2026-01-02 03:03:04 UTC (1m1s)",
        "  fence 7",
        r"  at least 2 waiting: w1; w\n2",
        "  breaking it ends the whole database session and rolls its transaction back; it also holds: other",
        "  another name has the same key, and may be the one that is held: twin",
    ]
