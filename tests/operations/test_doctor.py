"""``manage.py distlock doctor``: what it finds on servers that are well, and on those that are not."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from django_distlock import held_locks
from django_distlock.operations import doctor
from django_distlock.operations.doctor import diagnose
from django_distlock.records import BackendReport, Finding, LockInfo
from tests.engines.redis.server import url

pytestmark = pytest.mark.usefixtures("databases")

CANARY = "canary-of-a-password"
REDIS = "django_distlock.backends.redis.RedisBackend"


def call(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("distlock", "doctor", *arguments, stdout=out, no_color=True)
    except SystemExit as error:
        return int(error.code or 0), out.getvalue()
    return 0, out.getvalue()


def said(settings: Any, backend: str, **options: Any) -> dict[str, list[str]]:
    """level -> texts with their hints, of one alias."""
    settings.DISTLOCK = {"sick": {"BACKEND": backend, "OPTIONS": options}}
    found: dict[str, list[str]] = {"error": [], "warning": [], "info": []}
    for finding in diagnose("sick"):
        if finding.alias:
            assert finding.alias == "sick"
            found[finding.level].append(f"{finding.text} {finding.hint}")
    return found


def test_servers_that_are_well(using: str) -> None:
    """Every backend: nothing is wrong, and nothing is left behind."""
    status, out = call("--using", using)
    assert status == 0, out
    assert "A lock was acquired and released in" in out
    assert out.endswith("0 errors, 0 warnings.\n")
    (report,) = held_locks(using)
    assert not [info for info in report.locks if info.name == doctor.DOCTOR]


def test_json_has_stable_keys() -> None:
    status, out = call("--json")
    findings = json.loads(out)["findings"]
    assert status == 0
    assert {tuple(finding) for finding in findings} == {("level", "text", "hint", "alias")}
    assert {finding["level"] for finding in findings} <= {"info", "warning", "error"}


def test_an_error_is_the_exit_status(settings: Any) -> None:
    """And no password is in what is said."""
    settings.DISTLOCK = {
        "default": {"BACKEND": "no.such.Thing"},
        "down": {"BACKEND": REDIS, "OPTIONS": {"url": f"redis://:{CANARY}@127.0.0.1:1/0"}},
        "wrong": {"BACKEND": REDIS, "OPTIONS": {"url": url().replace("redis://:", f"redis://nobody:{CANARY}")}},
    }
    status, out = call()
    assert status == 1
    for alias in settings.DISTLOCK:
        assert f"{alias}: error: " in out
    assert CANARY not in out
    assert str(settings.DISTLOCK_SITE_KEY) not in out


def test_names_with_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    info = LockInfo(backend="memory", key="k", name="a", details={"collision": "b"})
    monkeypatch.setattr(doctor, "held_locks", lambda using: [BackendReport(alias=using, backend="B", locks=(info,))])
    errors = [finding.text for finding in diagnose("memory") if finding.level == "error"]
    assert errors == ["The names 'a' and 'b' have one key: they exclude each other."]


def test_a_server_unlike_all_that_we_know(monkeypatch: pytest.MonkeyPatch) -> None:
    from django_distlock.backends.memory import MemoryBackend

    def strange(self: MemoryBackend) -> list[Finding]:
        raise ZeroDivisionError(CANARY)

    monkeypatch.setattr(MemoryBackend, "diagnose", strange)
    (warning,) = (finding for finding in diagnose("memory") if finding.level == "warning")
    assert warning.text == "The server could not be examined: ZeroDivisionError."


def test_a_doctor_beside_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from django_distlock import advisory_lock

    monkeypatch.setattr(doctor, "PATIENCE", 0.05)
    found: list[Finding] = []

    def look() -> None:
        found.extend(diagnose("memory"))
        connections.close_all()  # of this thread

    with advisory_lock(doctor.DOCTOR, using="memory"):
        other = threading.Thread(target=look)
        other.start()
        other.join(10)
    (warning,) = (finding for finding in found if finding.level == "warning")
    assert "was busy for 0.05 s" in warning.text


@pytest.mark.parametrize(
    ("setting", "row", "level", "text"),
    [
        (None, "x", "info", "comes from the database"),
        ("x" * 32, "x" * 32, "info", "comes from DISTLOCK_SITE_KEY."),
        ("x" * 32, CANARY, "info", "has another one"),
        ("x" * 32, None, "info", "comes from DISTLOCK_SITE_KEY."),
        (None, None, "error", "There is no site key"),
        (5, "x", "error", "must be a str"),
    ],
)
def test_where_the_site_key_comes_from(
    settings: Any, monkeypatch: pytest.MonkeyPatch, setting: Any, row: str | None, level: str, text: str
) -> None:
    from django_distlock import BackendUnavailable

    def read() -> str:
        if row is None:
            raise BackendUnavailable("There is no site key for django-distlock.")
        return row

    monkeypatch.setattr(doctor, "read_row", read)
    settings.DISTLOCK_SITE_KEY = setting
    (finding,) = (finding for finding in diagnose("memory") if not finding.alias)
    assert finding.level == level
    assert text in finding.text
    assert CANARY not in finding.text
