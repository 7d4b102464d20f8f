"""System checks: each id with its message; the same mistakes are named at the first use of a lock."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import Error, Warning, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections
from django.http import HttpResponse
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.generic import RedirectView

from django_distlock import BackendUnavailable, advisory_lock, held_locks, lock_all
from django_distlock.apps import DOCS
from django_distlock.backends.memory import MemoryBackend
from django_distlock.checks.servers import check_sessions
from django_distlock.manager.registry import registry
from tests.faults.conftest import database_alias
from tests.support.findings import findings

if TYPE_CHECKING:
    from pathlib import Path


POSTGRES = "django_distlock.backends.postgres.AdvisoryBackend"
MEMORY = "django_distlock.backends.memory.MemoryBackend"
REDIS = "django_distlock.backends.redis.RedisBackend"
SECRETS = (
    "redis://:s3cr/et@localhost:6379/0",
    "redis://:s3cr#et@localhost:6379/0",
    "redis://user:s3cr:et@[localhost/0",
    "s3cr://user:et@localhost/0",
)


def found(settings: Any, distlock: Any) -> list[tuple[str, str, str]]:
    """(class, id, message) of what the checks say to a value of DISTLOCK."""
    settings.DISTLOCK = distlock
    return [(type(message).__name__, str(message.id), message.msg) for message in run_checks(tags=["distlock"])]


def test_the_settings_of_the_test_project_are_clean() -> None:
    assert run_checks(tags=["distlock"]) == []


MISTAKES: list[tuple[Any, str, str]] = [
    ("x", "E001", "DISTLOCK must be a dict"),
    ({"a": None}, "E001", "DISTLOCK['a'] must be a dict"),
    ({1: {}}, "E001", "DISTLOCK[1]: an alias must be a str."),
    ({"a": {"timeout": 5}}, "E002", "DISTLOCK['a'] has the unknown key 'timeout'."),
    ({"a": {"OPTIONS": "x"}}, "E003", "DISTLOCK['a']['OPTIONS'] must be a dict"),
    ({"a": {"BACKEND": MemoryBackend}}, "E003", "DISTLOCK['a']['BACKEND'] must be the dotted path of a"),
    ({"a": {"BACKEND": "no.such.Thing"}}, "E003", "DISTLOCK['a']: cannot import the backend 'no.such."),
    ({"a": {"BACKEND": "os.path.join"}}, "E003", "'os.path.join' is not a subclass of Backend."),
    ({"a": {"TIMEOUT": "5"}}, "E003", "DISTLOCK['a']: TIMEOUT must be a number"),
    ({"a": {"TIMEOUT": -1}}, "E003", "DISTLOCK['a']: TIMEOUT must not be negative"),
    ({"a": {"TIMEOUT": float("inf")}}, "E003", "TIMEOUT must be finite, not inf. Use None to wait"),
    ({"a": {"TTL": 0}}, "E003", "DISTLOCK['a']: TTL must be above zero"),
    ({"a": {"MAX_HOLD": False}}, "E003", "DISTLOCK['a']: MAX_HOLD must be a number of seconds or"),
    ({"a": {"MAX_HELD": True}}, "E003", "DISTLOCK['a']: MAX_HELD must be an int, not bool."),
    ({"a": {"WARN_HOLD_SECONDS": 0}}, "E003", "DISTLOCK['a']: WARN_HOLD_SECONDS must be above zero"),
    ({"a": {"OPTIONS": {"database": "no"}}}, "E003", "database 'no', which is not in"),
    ({"a": {"OPTIONS": {"database": [1]}}}, "E003", "OPTIONS['database'] must be an alias in DATABASES."),
    ({"a": {"BACKEND": POSTGRES, "OPTIONS": {"wait_sessions": "8"}}}, "E003", "wait_sessions must be an int, not str."),
    ({"a": {"BACKEND": POSTGRES, "OPTIONS": {"wait_sessions": 0}}}, "E003", "wait_sessions must be above zero"),
    ({"a": {"OPTIONS": {"datbase": "x"}}}, "E004", "LeaseTableBackend has no option 'datbase'."),
    ({"a": {"BACKEND": MEMORY, "OPTIONS": {"database": "default"}}}, "E004", "MemoryBackend has no option 'database'."),
    ({"a": {"BACKEND": POSTGRES, "OPTIONS": {"session_database": "no"}}}, "E005", "'no', which is not in DATABASES."),
    ({"a": {"BACKEND": POSTGRES, "TTL": 5}}, "E006", "AdvisoryBackend has no TTL: its locks live as"),
    ({"a": {"BACKEND": POSTGRES, "MAX_HOLD": 5}}, "E006", "AdvisoryBackend has no MAX_HOLD: its locks"),
    ({"a": {"BACKEND": REDIS, "OPTIONS": {"cache": "redis", "url": "redis://x"}}}, "E003", "not both."),
    ({"a": {"BACKEND": REDIS, "OPTIONS": {"url": 5}}}, "E003", "OPTIONS['url'] must be a str, not int."),
    ({"a": {"BACKEND": REDIS, "OPTIONS": {"cache": "no"}}}, "E003", "CACHES has no such alias."),
    ({"a": {"BACKEND": REDIS, "OPTIONS": {"cache": "default"}}}, "E003", "'default' is not one of django-redis"),
    ({"a": {"BACKEND": REDIS, "OPTIONS": {"url": "http://x"}}}, "E003", "is no Redis URL"),
    # a password that makes the URL unreadable, or stands where something else should
    *(({"a": {"BACKEND": REDIS, "OPTIONS": {"url": url}}}, "E003", "") for url in SECRETS),
]


def test_each_mistake_has_one_error_without_secrets(settings: Any) -> None:
    for distlock, identity, message in MISTAKES:
        (error,) = found(settings, distlock)
        assert error[:2] == ("Error", f"distlock.{identity}"), distlock
        assert message in error[2]
        assert "s3cr" not in error[2]


def test_the_same_mistakes_are_named_at_the_first_use(settings: Any) -> None:
    for distlock, message in (
        ("x", "DISTLOCK must be a dict"),
        ({"default": None}, r"DISTLOCK\['default'\] must be a dict"),
        ({"default": {"BACKEND": "no.such.Thing"}}, r"DISTLOCK\['default'\]: cannot import 'no.such.Thing'"),
        ({"default": {"TIMEOUT": "5"}}, r"DISTLOCK\['default'\]: TIMEOUT must be a number"),
        ({"default": {"BACKEND": POSTGRES, "OPTIONS": {"wait_sessions": -1}}}, "wait_sessions must be above zero"),
    ):
        settings.DISTLOCK = distlock
        with pytest.raises(ImproperlyConfigured, match=message):
            advisory_lock("x").acquire()


def test_secrets_of_a_bad_url_are_not_told_at_the_first_use_either(settings: Any) -> None:
    for url in SECRETS:
        settings.DISTLOCK = {"r": {"BACKEND": REDIS, "OPTIONS": {"url": url}}}
        with pytest.raises(BackendUnavailable) as caught:
            advisory_lock("x", using="r").acquire(timeout=0)
        error: BaseException | None = caught.value
        while error is not None:
            assert "s3cr" not in str(error)
            error = error.__cause__ or error.__context__


def test_a_mistake_stops_manage_py(settings: Any) -> None:
    settings.DISTLOCK = {"a": {"TIMOUT": 5}}
    with pytest.raises(SystemCheckError, match=r"distlock\.E002.*'TIMOUT'(?s:.*)HINT: Known keys: BACKEND,"):
        call_command("check", "--tag", "distlock")


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


def test_a_server_that_several_databases_share(settings: Any) -> None:
    def deploy() -> list[str | None]:
        return [each.id for each in run_checks(tags=["distlock"], include_deployment_checks=True)]

    assert "distlock.W004" not in deploy()
    settings.DISTLOCK_SITE_KEY = None
    assert "distlock.W004" in deploy()
    settings.DISTLOCK = {"leases": settings.DISTLOCK["leasetable"], "none": None, "lost": {"BACKEND": "nowhere.X"}}
    assert "distlock.W004" not in deploy()


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


BACKENDS = "django_distlock.backends"
ON_POSTGRES = {"BACKEND": f"{BACKENDS}.postgres.AdvisoryBackend", "OPTIONS": {"database": "postgres"}}
ON_MYSQL = {"BACKEND": f"{BACKENDS}.mysql.NamedLockBackend", "OPTIONS": {"database": "mariadb"}}
IN_MEMORY = {"BACKEND": f"{BACKENDS}.memory.MemoryBackend"}


def told(tag: str = "distlock", **how: Any) -> list[tuple[str, str]]:
    """(id, message with hint) of what the checks say."""
    messages = [each for each in findings(tag, **how) if str(each.id).startswith("distlock.")]
    assert all(str(message.hint).endswith(DOCS) for message in messages)
    return [(str(message.id), f"{message.msg} {message.hint}") for message in messages]


@pytest.mark.parametrize(
    ("driver", "extra", "wrapped"),
    [
        ("psycopg", "postgres", True),
        ("MySQLdb", "mysql", True),
        ("redis", "redis", False),
        ("kazoo", "zookeeper", False),
    ],
)
def test_a_missing_driver_is_named_with_its_extra(
    settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: str, extra: str, wrapped: bool
) -> None:
    """Some engines say so in their own words, some let the import fail."""
    body = f"import {driver}.sub"
    if wrapped:
        body = f"""
from django.core.exceptions import ImproperlyConfigured
try:
    import {driver}
except ImportError as error:
    raise ImproperlyConfigured("needs a driver") from error
"""
    (tmp_path / "engine_without_driver.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "engine_without_driver", raising=False)
    monkeypatch.setitem(sys.modules, driver, None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, f"{driver}.sub", None)
    settings.DISTLOCK = {"default": {"BACKEND": "engine_without_driver.Backend"}}
    ((identity, text),) = told()
    assert identity == "distlock.E008"
    assert f"pip install 'django-distlock[{extra}]'" in text


POOLERS: list[tuple[Any, dict[str, Any], str]] = [
    (ON_POSTGRES, {"PORT": "6432"}, "its port is 6432"),
    (ON_POSTGRES, {"PORT": 6543}, "its port is 6543"),
    (ON_POSTGRES, {"DISABLE_SERVER_SIDE_CURSORS": True}, "DISABLE_SERVER_SIDE_CURSORS"),
    (ON_POSTGRES, {"HOST": "ep-cool-name-123456-pooler.us-east-2.aws.neon.tech"}, "-pooler."),
    (ON_POSTGRES, {"HOST": "aws-0-eu-central-1.pooler.supabase.com"}, ".pooler.supabase.com"),
    (ON_POSTGRES, {"HOST": "shop.proxy-abcdefghijkl.eu-central-1.rds.amazonaws.com"}, ".proxy-"),
    (ON_MYSQL, {"PORT": "6033"}, "its port is 6033"),
    (ON_MYSQL, {"HOST": "shop.proxy-abcdefghijkl.cn-north-1.rds.amazonaws.com.cn"}, ".proxy-"),
]


NO_POOLERS = ["db.supabase.com", "ep-cool-name.aws.neon.tech", "shop.cluster-abc.eu-central-1.rds.amazonaws.com", None]


def test_lock_sessions_through_what_looks_like_a_pooler(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for alias, changes, why in POOLERS:
        database = alias["OPTIONS"]["database"]
        with database_alias("direct", database) as direct, monkeypatch.context() as patch:
            for key, value in changes.items():
                patch.setitem(connections.settings[database], key, value)
            settings.DISTLOCK = {"default": alias}
            ((identity, text),) = told()
            assert identity == "distlock.W005"
            assert why in text
            options = {"database": database, "session_database": direct}
            settings.DISTLOCK = {"default": {**alias, "OPTIONS": options}}
            assert told() == []
    settings.DISTLOCK = {"default": ON_POSTGRES}
    for host in NO_POOLERS:
        monkeypatch.setitem(connections.settings["postgres"], "HOST", host)
        assert told() == []


@pytest.mark.usefixtures("databases")
def test_servers_that_refuse_lock_sessions(settings: Any) -> None:
    """Only ``check --database`` connects; and nothing stays open."""
    settings.DISTLOCK = {
        "default": {**ON_POSTGRES, "OPTIONS": {"database": "pgbouncer"}},
        "fine": ON_POSTGRES,
        "other": ON_MYSQL,
        "broken": {"BACKEND": "no.such.Thing"},
    }
    assert "distlock.W006" not in dict(told())
    everywhere = told("database", databases=["default", "postgres", "pgbouncer", "mariadb"])
    refused = [text for identity, text in everywhere if identity == "distlock.W006"]
    assert len(refused) == 1
    assert "'default' go through a pooler" in refused[0]
    assert "distlock.W006" not in dict(told("database", databases=["postgres"]))
    assert not list(registry.backends())


@pytest.mark.parametrize("backend", [ON_POSTGRES, ON_MYSQL])
def test_a_database_of_another_engine(settings: Any, backend: dict[str, Any]) -> None:
    """Told as what it is, and `migrate` ends with a message instead of a traceback."""
    settings.DISTLOCK = {"default": {**backend, "OPTIONS": {"database": "default"}}}
    (message,) = check_sessions(None, databases=["default"])
    assert message.id == "distlock.E005"
    assert "the database 'default' is sqlite" in message.msg


@pytest.mark.usefixtures("databases")
def test_a_server_that_does_not_answer_is_no_fault_of_the_settings(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {**connections.settings["postgres"], "PORT": "1"}
    monkeypatch.setitem(connections.settings, "away", away)
    settings.DISTLOCK = {"default": {**ON_POSTGRES, "OPTIONS": {"database": "postgres", "session_database": "away"}}}
    assert check_sessions(None, databases=["away"]) == []


def test_waiting_for_ever(settings: Any) -> None:
    """Only where it is asked for a deployment."""
    settings.DISTLOCK = {"default": {**IN_MEMORY, "TIMEOUT": None}, "other": IN_MEMORY}
    assert told() == []
    ((identity, text),) = told(include_deployment_checks=True)
    assert identity == "distlock.W007"
    assert "'default'" in text


def test_a_ttl_that_is_too_short(settings: Any) -> None:
    for ttl, ids in ((0.5, ["distlock.W008"]), (2.9, ["distlock.W008"]), (3, []), (30, [])):
        settings.DISTLOCK = {"default": {**IN_MEMORY, "TTL": ttl}}
        assert [identity for identity, _ in told()] == ids


class Hidden(View):
    """Whose dispatch takes anything, so that the decorator cannot tell."""

    def get(self, request: Any, **kwargs: Any) -> HttpResponse:
        return HttpResponse()


hidden = method_decorator(advisory_lock("account:{id}"), name="dispatch")(Hidden).as_view()


@advisory_lock("outer")
@lock_all(["a:{id}", "b:{other}"])
def two(request: Any, **kwargs: Any) -> HttpResponse:
    return HttpResponse()


@advisory_lock("shop:{id}")
async def shop(request: Any, **kwargs: Any) -> HttpResponse:
    return HttpResponse()


@advisory_lock("user:{request.user.pk}:{id}")
def default(request: Any, id: int = 1) -> HttpResponse:
    return HttpResponse()


def routes(settings: Any, monkeypatch: pytest.MonkeyPatch, *patterns: Any) -> list[str]:
    """The messages for these routes."""
    module: Any = ModuleType("routes_of_a_test")
    module.urlpatterns = list(patterns)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    settings.ROOT_URLCONF = module.__name__
    messages = told()
    assert {identity for identity, _ in messages} <= {"distlock.E009"}
    return [text for _, text in messages]


def test_a_route_that_does_not_give_what_the_name_needs(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for view in (hidden, shop, two):
        (text,) = routes(settings, monkeypatch, path("accounts/<int:pk>/<other>", view))
        assert "The route 'accounts/<int:pk>/<other>' calls tests.engines.test_checks." in text
        assert "needs 'id'" in text
        assert "gives other, pk." in text
        assert routes(settings, monkeypatch, path("accounts/<int:id>/<other>", view)) == []
    (text,) = routes(settings, monkeypatch, re_path(r"^k/(\d+)/$", hidden))
    assert "gives nothing" in text


def test_what_a_route_gives(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, by the one above it, by a group, and by its extra arguments; and no routes at all."""
    patterns = [
        path("a/<int:id>/", include([path("b/", hidden)])),
        path("c/", include([path("d/", hidden)]), {"id": 1}),
        path("e/", hidden, {"id": 1}),
        re_path(r"^f/(?P<id>\d+)/$", hidden),
        path("h/", default),
        path("i/", RedirectView.as_view(url="/")),
    ]
    assert routes(settings, monkeypatch, *patterns) == []
    settings.ROOT_URLCONF = "no.such.module"
    assert told() == []
    del settings.ROOT_URLCONF
    assert told() == []
