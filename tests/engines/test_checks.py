"""System checks: each id with its message; the same mistakes are named at the first use of a lock."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.http import HttpResponse
from django.urls import include, path, re_path
from django.utils.connection import ConnectionDoesNotExist
from django.utils.decorators import method_decorator
from django.views import View
from django.views.generic import RedirectView
from psycopg import IsolationLevel

from django_distlock import BackendUnavailable, advisory_lock, held_locks, lock_all
from django_distlock.apps import DOCS
from django_distlock.backends.memory import MemoryBackend
from django_distlock.checks.servers import check_sessions
from django_distlock.manager.registry import registry
from tests.faults.conftest import database_alias
from tests.support.findings import findings

BACKENDS = "django_distlock.backends"
POSTGRES = f"{BACKENDS}.postgres.AdvisoryBackend"
MYSQL = f"{BACKENDS}.mysql.NamedLockBackend"
MEMORY = f"{BACKENDS}.memory.MemoryBackend"
REDIS = f"{BACKENDS}.redis.RedisBackend"
ON_POSTGRES = {"BACKEND": POSTGRES, "OPTIONS": {"database": "postgres"}}
ON_MYSQL = {"BACKEND": MYSQL, "OPTIONS": {"database": "mariadb"}}
# a password that makes the URL unreadable, or stands where something else should
SECRETS = (
    "redis://:s3cr/et@localhost:6379/0",
    "redis://:s3cr#et@localhost:6379/0",
    "redis://user:s3cr:et@[localhost/0",
    "s3cr://user:et@localhost/0",
)


def told(tag: str = "distlock", **how: Any) -> list[tuple[str, str]]:
    """(id, message with hint) of what the checks say."""
    messages = [each for each in findings(tag, **how) if str(each.id).startswith("distlock.")]
    assert all(str(message.hint).endswith(DOCS) for message in messages)
    return [(str(message.id).partition(".")[2], f"{message.msg} {message.hint}") for message in messages]


def ids(**how: Any) -> list[str]:
    return [identity for identity, _ in told(**how)]


MISTAKES: list[tuple[Any, str, str]] = [
    ("x", "E001", "DISTLOCK must be a dict"),
    ({"a": None}, "E001", "DISTLOCK['a'] must be a dict"),
    ({1: {}}, "E001", "alias must be a str"),
    ({"a": {"timeout": 5}}, "E002", "DISTLOCK['a'] has the unknown key 'timeout'"),
    ({"a": {"OPTIONS": "x"}}, "E003", "['OPTIONS'] must be a dict"),
    ({"a": {"BACKEND": MemoryBackend}}, "E003", "must be the dotted path"),
    ({"a": {"BACKEND": "no.such.Thing"}}, "E003", "cannot import the backend 'no.such."),
    ({"a": {"BACKEND": "os.path.join"}}, "E003", "'os.path.join' is not a subclass of Backend"),
    ({"a": {"TIMEOUT": -1}}, "E003", "TIMEOUT must not be negative"),
    ({"a": {"TTL": 0}}, "E003", "TTL must be above zero"),
    ({"a": {"MAX_HOLD": False}}, "E003", "MAX_HOLD must be a number"),
    ({"a": {"MAX_HELD": True}}, "E003", "MAX_HELD must be an int"),
    ({"a": {"WARN_HOLD_SECONDS": 0}}, "E003", "WARN_HOLD_SECONDS must be above zero"),
    ({"a": {"OPTIONS": {"database": "no"}}}, "E003", "database 'no', which is not in"),
    ({"a": {"OPTIONS": {"database": [1]}}}, "E003", "must be an alias in DATABASES"),
    ({"a": {"BACKEND": POSTGRES, "OPTIONS": {"wait_sessions": 0}}}, "E003", "wait_sessions must be above zero"),
    ({"a": {"OPTIONS": {"datbase": "x"}}}, "E004", "no option 'datbase'"),
    ({"a": {"BACKEND": MEMORY, "OPTIONS": {"database": "default"}}}, "E004", "no option 'database'"),
    ({"a": {"BACKEND": POSTGRES, "OPTIONS": {"session_database": "no"}}}, "E005", "'no', which is not in DATABASES"),
    ({"a": {"BACKEND": POSTGRES, "TTL": 5}}, "E006", "has no TTL"),
    ({"a": {"BACKEND": POSTGRES, "MAX_HOLD": 5}}, "E006", "has no MAX_HOLD"),
    ({"a": {"BACKEND": REDIS, "OPTIONS": {"cache": "redis", "url": "redis://x"}}}, "E003", "not both"),
    ({"a": {"BACKEND": REDIS, "OPTIONS": {"url": 5}}}, "E003", "must be a str, not int"),
    ({"a": {"BACKEND": REDIS, "OPTIONS": {"cache": "no"}}}, "E003", "CACHES has no such alias"),
    ({"a": {"BACKEND": REDIS, "OPTIONS": {"cache": "default"}}}, "E003", "not one in Redis"),
    ({"a": {"BACKEND": REDIS, "OPTIONS": {"url": "http://x"}}}, "E003", "is no Redis URL"),
    *(({"a": {"BACKEND": REDIS, "OPTIONS": {"url": url}}}, "E003", "") for url in SECRETS),
]


AT_FIRST_USE = (ImproperlyConfigured, BackendUnavailable, ConnectionDoesNotExist)


def test_each_mistake_is_named_by_the_checks_and_at_the_first_use_without_secrets(settings: Any) -> None:
    assert told() == []
    for distlock, identity, message in MISTAKES:
        settings.DISTLOCK = distlock
        ((found, text),) = told()
        assert found == identity, distlock
        assert message in text
        assert "s3cr" not in text
        if identity in ("E002", "E004", "E006"):  # what has no effect does no harm
            continue
        with pytest.raises(AT_FIRST_USE) as caught:
            advisory_lock("x", using="a").acquire(timeout=0)
        error: BaseException | None = caught.value
        while error is not None:
            assert "s3cr" not in str(error)
            error = error.__cause__ or error.__context__


def test_an_unknown_alias_is_an_error_at_first_use_and_a_broken_one_is_listed(settings: Any) -> None:
    settings.DISTLOCK = {"one": {"BACKEND": MEMORY}, "broken": {"BACKEND": "no.such.Thing"}}
    lock = advisory_lock("x", using="three")  # not at import
    with pytest.raises(ImproperlyConfigured, match=r"'three' in DISTLOCK. Known: 'default', 'one', 'broken'"):
        lock.acquire()
    errors = {report.alias: report.error for report in held_locks()}
    assert (errors["one"], errors["broken"]) == (None, "ImproperlyConfigured")


@pytest.mark.parametrize(("key", "expected"), [(5, "E007"), (b"x" * 40, "E007"), ("short", "W001")])
def test_a_bad_site_key(settings: Any, key: Any, expected: str) -> None:
    settings.DISTLOCK_SITE_KEY = key
    ((identity, text),) = told()
    assert identity == expected
    assert "DISTLOCK_SITE_KEY" in text
    assert str(key) not in text


def test_what_is_told_of_a_deployment_only(settings: Any) -> None:
    """A server that several databases share, and a lock that waits for ever."""
    assert "W004" not in ids(include_deployment_checks=True)
    settings.DISTLOCK_SITE_KEY = None
    assert "W004" in ids(include_deployment_checks=True)
    settings.DISTLOCK = {"leases": settings.DISTLOCK["leasetable"], "none": None, "lost": {"BACKEND": "nowhere.X"}}
    assert "W004" not in ids(include_deployment_checks=True)
    settings.DISTLOCK = {"default": {"BACKEND": MEMORY, "TIMEOUT": None}, "other": {"BACKEND": MEMORY}}
    assert ids() == []
    assert ids(include_deployment_checks=True) == ["W007"]


def test_a_ttl_that_is_too_short(settings: Any) -> None:
    for ttl, expected in ((0.5, ["W008"]), (2.9, ["W008"]), (3, []), (30, [])):
        settings.DISTLOCK = {"default": {"BACKEND": MEMORY, "TTL": ttl}}
        assert ids() == expected


@pytest.mark.parametrize("level", ["REPEATABLE READ", "serializable", IsolationLevel.REPEATABLE_READ], ids=str)
def test_r13_isolation_levels_are_warned_of(monkeypatch: pytest.MonkeyPatch, level: Any) -> None:
    """R13, as far as the settings tell: in the spelling of either driver."""
    monkeypatch.setitem(connections.settings["postgres"]["OPTIONS"], "isolation_level", level)
    messages = told()
    assert {identity for identity, _ in messages} == {"W002"}
    assert "'postgres'" in messages[0][1]
    assert "READ COMMITTED" in messages[0][1]


IN_ITS_OWN_WORDS = """
from django.core.exceptions import ImproperlyConfigured
try:
    import {driver}
except ImportError as error:
    raise ImproperlyConfigured("needs a driver") from error
"""


@pytest.mark.parametrize(
    ("driver", "extra", "body"),
    [
        ("psycopg", "postgres", IN_ITS_OWN_WORDS),
        ("MySQLdb", "mysql", IN_ITS_OWN_WORDS),
        ("redis", "redis", "import {driver}.sub"),
        ("kazoo", "zookeeper", "import {driver}.sub"),
    ],
)
def test_a_missing_driver_is_named_with_its_extra(
    settings: Any, monkeypatch: Any, tmp_path: Any, driver: str, extra: str, body: str
) -> None:
    (tmp_path / "engine_without_driver.py").write_text(body.format(driver=driver))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "engine_without_driver", raising=False)
    monkeypatch.setitem(sys.modules, driver, None)  # as if it were not installed
    settings.DISTLOCK = {"default": {"BACKEND": "engine_without_driver.Backend"}}
    ((identity, text),) = told()
    assert identity == "E008"
    assert f"pip install 'django-distlock[{extra}]'" in text


POOLERS: list[tuple[Any, dict[str, Any], str]] = [
    (ON_POSTGRES, {"PORT": 6432}, "its port is 6432"),
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
            assert identity == "W005"
            assert why in text
            options = {"database": database, "session_database": direct}
            settings.DISTLOCK = {"default": {**alias, "OPTIONS": options}}
            assert told() == []
    settings.DISTLOCK = {"default": ON_POSTGRES}
    for host in NO_POOLERS:
        monkeypatch.setitem(connections.settings["postgres"], "HOST", host)
        assert told() == []


@pytest.mark.usefixtures("databases")
def test_r22b_servers_that_refuse_lock_sessions(settings: Any) -> None:
    """Only ``check --database`` connects. A server that does not answer is no fault of the settings."""
    settings.DISTLOCK = {
        "default": {**ON_POSTGRES, "OPTIONS": {"database": "pgbouncer"}},
        "fine": ON_POSTGRES,
        "other": ON_MYSQL,
        "broken": {"BACKEND": "no.such.Thing"},
    }
    assert "W006" not in ids()
    everywhere = told("database", databases=["default", "postgres", "pgbouncer", "mariadb"])
    (refused,) = [text for identity, text in everywhere if identity == "W006"]
    assert "'default' go through a pooler" in refused
    assert "W006" not in ids(tag="database", databases=["postgres"])
    assert not list(registry)
    with database_alias("away", "postgres", PORT="1"):
        options = {"database": "postgres", "session_database": "away"}
        settings.DISTLOCK = {"default": {**ON_POSTGRES, "OPTIONS": options}}
        assert check_sessions(None, databases=["away"]) == []


@pytest.mark.parametrize("alias", [ON_POSTGRES, ON_MYSQL], ids=["postgres", "mysql"])
def test_a_database_of_another_engine(settings: Any, alias: dict[str, Any]) -> None:
    """Told as what it is, and `migrate` ends with a message instead of a traceback."""
    settings.DISTLOCK = {"default": {**alias, "OPTIONS": {"database": "default"}}}
    (message,) = check_sessions(None, databases=["default"])
    assert message.id == "distlock.E005"
    assert "the database 'default' is sqlite" in message.msg
    with pytest.raises(ImproperlyConfigured, match=r"DISTLOCK\['default'\]: .*'default' is sqlite, not "):
        advisory_lock("x").acquire()


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
    assert set(ids()) <= {"E009"}
    return [text for _, text in told()]


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
