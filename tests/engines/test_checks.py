"""System checks: each id with its message; and that the same mistakes are named at the first use of a lock."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import Error, Warning, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from django_distlock import advisory_lock, held_locks
from django_distlock.backends.memory import MemoryBackend

POSTGRES = "django_distlock.backends.postgres.AdvisoryBackend"
MEMORY = "django_distlock.backends.memory.MemoryBackend"
REDIS = "django_distlock.backends.redis.RedisBackend"


def found(settings: Any, distlock: Any) -> list[tuple[str, str, str]]:
    """(class, id, message) of what the checks say to a value of DISTLOCK."""
    settings.DISTLOCK = distlock
    return [(type(message).__name__, str(message.id), message.msg) for message in run_checks(tags=["distlock"])]


def test_the_settings_of_the_test_project_are_clean() -> None:
    assert run_checks(tags=["distlock"]) == []


@pytest.mark.parametrize("distlock", [{}, {"default": {}}, {"other": {"BACKEND": MEMORY}}])
def test_what_needs_no_settings(settings: Any, distlock: Any) -> None:
    assert found(settings, distlock) == []


@pytest.mark.parametrize(
    ("distlock", "identity", "message"),
    [
        ("x", "distlock.E001", "DISTLOCK must be a dict: alias -> settings."),
        ([("default", {})], "distlock.E001", "DISTLOCK must be a dict: alias -> settings."),
        ({"a": None}, "distlock.E001", "DISTLOCK['a'] must be a dict."),
        ({"a": MEMORY}, "distlock.E001", "DISTLOCK['a'] must be a dict."),
        ({1: {}}, "distlock.E001", "DISTLOCK[1]: an alias must be a str."),
        ({"a": {"timeout": 5}}, "distlock.E002", "DISTLOCK['a'] has the unknown key 'timeout'."),
        ({"a": {"OPTIONS": "x"}}, "distlock.E003", "DISTLOCK['a']['OPTIONS'] must be a dict."),
        ({"a": {"BACKEND": MemoryBackend}}, "distlock.E003", "DISTLOCK['a']['BACKEND'] must be the dotted path of a"),
        ({"a": {"BACKEND": "no.such.Thing"}}, "distlock.E003", "DISTLOCK['a']: cannot import the backend 'no.such."),
        ({"a": {"BACKEND": "django_distlock.Lock"}}, "distlock.E003", "'django_distlock.Lock' is not a subclass of"),
        ({"a": {"BACKEND": "os.path.join"}}, "distlock.E003", "'os.path.join' is not a subclass of Backend."),
        ({"a": {"TIMEOUT": "5"}}, "distlock.E003", "DISTLOCK['a']: TIMEOUT must be a number of seconds or None, not"),
        ({"a": {"TIMEOUT": -1}}, "distlock.E003", "DISTLOCK['a']: TIMEOUT must not be negative"),
        (
            {"a": {"TIMEOUT": float("inf")}},
            "distlock.E003",
            "TIMEOUT must be finite, not inf. Use None to wait",
        ),
        ({"a": {"TTL": 0}}, "distlock.E003", "DISTLOCK['a']: TTL must be above zero"),
        (
            {"a": {"MAX_HOLD": False}},
            "distlock.E003",
            "DISTLOCK['a']: MAX_HOLD must be a number of seconds or",
        ),
        ({"a": {"MAX_HELD": 0}}, "distlock.E003", "DISTLOCK['a']: MAX_HELD must be above zero"),
        ({"a": {"MAX_HELD": True}}, "distlock.E003", "DISTLOCK['a']: MAX_HELD must be an int, not bool."),
        ({"a": {"WARN_HOLD_SECONDS": 0}}, "distlock.E003", "DISTLOCK['a']: WARN_HOLD_SECONDS must be above zero"),
        ({"a": {"OPTIONS": {"database": "no"}}}, "distlock.E003", "DISTLOCK names the database 'no', which is not in"),
        ({"a": {"OPTIONS": {"database": [1]}}}, "distlock.E003", "OPTIONS['database'] must be an alias in DATABASES."),
        (
            {"a": {"BACKEND": POSTGRES, "OPTIONS": {"wait_sessions": "8"}}},
            "distlock.E003",
            "DISTLOCK['a']: wait_sessions must be an int, not str.",
        ),
        ({"a": {"BACKEND": POSTGRES, "OPTIONS": {"wait_sessions": 0}}}, "distlock.E003", "wait_sessions must be above"),
        (
            {"a": {"OPTIONS": {"datbase": "x"}}},
            "distlock.E004",
            "LeaseTableBackend has no option 'datbase'.",
        ),
        (
            {"a": {"BACKEND": MEMORY, "OPTIONS": {"database": "default"}}},
            "distlock.E004",
            "DISTLOCK['a']: MemoryBackend has no option 'database'.",
        ),
        (
            {"a": {"BACKEND": POSTGRES, "OPTIONS": {"session_database": "no"}}},
            "distlock.E005",
            "DISTLOCK['a']: OPTIONS['session_database'] is 'no', which is not in DATABASES.",
        ),
        (
            {"a": {"BACKEND": POSTGRES, "TTL": 5}},
            "distlock.E006",
            "AdvisoryBackend has no TTL: its locks live as",
        ),
        (
            {"a": {"BACKEND": POSTGRES, "MAX_HOLD": 5}},
            "distlock.E006",
            "AdvisoryBackend has no MAX_HOLD: its locks",
        ),
        (
            {"a": {"BACKEND": REDIS, "OPTIONS": {"cache": "redis", "url": "redis://x"}}},
            "distlock.E003",
            "DISTLOCK['a']: give either OPTIONS['cache'] or OPTIONS['url'], not both.",
        ),
        ({"a": {"BACKEND": REDIS, "OPTIONS": {"url": 5}}}, "distlock.E003", "OPTIONS['url'] must be a str, not int."),
        ({"a": {"BACKEND": REDIS, "OPTIONS": {"cache": "no"}}}, "distlock.E003", "CACHES has no such alias."),
    ],
)
def test_each_mistake_has_one_error(settings: Any, distlock: Any, identity: str, message: str) -> None:
    errors = found(settings, distlock)
    assert [(kind, number) for kind, number, _ in errors] == [("Error", identity)]
    assert message in errors[0][2]


def test_a_mistake_stops_manage_py(settings: Any) -> None:
    settings.DISTLOCK = {"a": {"TIMOUT": 5}}
    with pytest.raises(SystemCheckError, match=r"distlock\.E002.*'TIMOUT'(?s:.*)HINT: Known keys: BACKEND,"):
        call_command("check", "--tag", "distlock")


@pytest.mark.parametrize(
    ("distlock", "message"),
    [
        ("x", "DISTLOCK must be a dict"),
        ({"default": None}, r"DISTLOCK\['default'\] must be a dict"),
        ({"default": {"OPTIONS": "x"}}, r"\['OPTIONS'\] must be a dict"),
        ({"default": {"BACKEND": 5}}, "must be the dotted path of a class"),
        ({"default": {"BACKEND": "no.such.Thing"}}, r"DISTLOCK\['default'\]: cannot import 'no.such.Thing'"),
        ({"default": {"TIMEOUT": "5"}}, r"DISTLOCK\['default'\]: TIMEOUT must be a number"),
        ({"default": {"OPTIONS": {"database": "no"}}}, "database 'no', which is not in DATABASES"),
        ({"default": {"BACKEND": POSTGRES, "OPTIONS": {"wait_sessions": -1}}}, "wait_sessions must be above zero"),
    ],
)
def test_the_same_mistakes_are_named_at_the_first_use(settings: Any, distlock: Any, message: str) -> None:
    settings.DISTLOCK = distlock
    with pytest.raises(ImproperlyConfigured, match=message):
        advisory_lock("x").acquire()


def test_an_unknown_alias_is_an_error_at_first_use_and_names_the_known_ones(settings: Any) -> None:
    settings.DISTLOCK = {"one": {"BACKEND": MEMORY}, "two": {"BACKEND": MEMORY}}
    lock = advisory_lock("x", using="three")  # not at import
    with pytest.raises(ImproperlyConfigured, match=r"'three' in DISTLOCK. Known: 'default', 'one', 'two'"):
        lock.acquire()


def test_held_locks_takes_a_broken_alias_for_data(settings: Any) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": MEMORY}, "broken": {"BACKEND": "no.such.Thing"}}
    reports = {report.alias: report for report in held_locks()}
    assert reports["default"].error is None
    assert reports["broken"].error == "ImproperlyConfigured"


@pytest.mark.parametrize(
    ("key", "expected"), [(5, "distlock.E007"), (b"x" * 40, "distlock.E007"), ("short", "distlock.W001")]
)
def test_a_bad_site_key(settings: Any, key: Any, expected: str) -> None:
    settings.DISTLOCK_SITE_KEY = key
    (message,) = run_checks(tags=["distlock"])
    assert message.id == expected
    assert isinstance(message, Error if expected == "distlock.E007" else Warning)
    assert "DISTLOCK_SITE_KEY" in message.msg
    assert str(key) not in f"{message.msg}{message.hint}"


def test_a_good_site_key_is_quiet(settings: Any) -> None:
    settings.DISTLOCK_SITE_KEY = "x" * 32
    assert run_checks(tags=["distlock"]) == []


@pytest.mark.parametrize("level", ["REPEATABLE READ", "serializable", "enum"])
def test_r13_isolation_levels_are_warned_of(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """R13, as far as the settings tell: in the spelling of either driver."""
    from django.db import connections
    from psycopg import IsolationLevel

    value: Any = IsolationLevel.REPEATABLE_READ if level == "enum" else level
    monkeypatch.setitem(connections.settings["postgres"]["OPTIONS"], "isolation_level", value)
    messages = run_checks(tags=["distlock"])
    assert {message.id for message in messages} == {"distlock.W002"}
    assert "'postgres'" in messages[0].msg
    assert "READ COMMITTED" in str(messages[0].hint)


def test_read_committed_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import connections
    from psycopg import IsolationLevel

    monkeypatch.setitem(connections.settings["postgres"]["OPTIONS"], "isolation_level", IsolationLevel.READ_COMMITTED)
    assert run_checks(tags=["distlock"]) == []
