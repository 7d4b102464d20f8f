"""System checks of drivers, servers, routes and times; and that each message says where to read on."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.http import HttpResponse
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.generic import RedirectView

from django_distlock import advisory_lock, lock_all
from django_distlock.apps import DOCS
from django_distlock.checks.servers import check_sessions
from django_distlock.manager.registry import registry
from tests.faults.conftest import database_alias
from tests.support.findings import findings
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BACKENDS = "django_distlock.backends"
POSTGRES = {"BACKEND": f"{BACKENDS}.postgres.AdvisoryBackend", "OPTIONS": {"database": "postgres"}}
MYSQL = {"BACKEND": f"{BACKENDS}.mysql.NamedLockBackend", "OPTIONS": {"database": "mariadb"}}
MEMORY = {"BACKEND": f"{BACKENDS}.memory.MemoryBackend"}


def found(tag: str = "distlock", **how: Any) -> list[tuple[str, str]]:
    """(id, message with hint) of what the checks say."""
    messages = [each for each in findings(tag, **how) if str(each.id).startswith("distlock.")]
    assert all(str(message.hint).endswith(DOCS) for message in messages)
    return [(str(message.id), f"{message.msg} {message.hint}") for message in messages]


def test_every_check_is_raised_by_a_test() -> None:
    """And the page about checks has them all: see tests/docs/test_reference.py."""
    source = "".join(path.read_text() for path in (ROOT / "django_distlock").rglob("*.py"))
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    ids = set(re.findall(r'id="(distlock\.[EW]\d{3})"', source))
    assert ids
    assert not {identity for identity in ids if f'"{identity}"' not in tests}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("driver", "extra"), [("psycopg", "postgres"), ("MySQLdb", "mysql"), ("redis", "redis"), ("kazoo", "zookeeper")]
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
    ((identity, text),) = found()
    assert identity == "distlock.E008"
    assert f"pip install 'django-distlock[{extra}]'" in text


@pytest.mark.parametrize(
    ("alias", "changes", "why"),
    [
        (POSTGRES, {"PORT": "6432"}, "its port is 6432"),
        (POSTGRES, {"PORT": 6432}, "its port is 6432"),
        (POSTGRES, {"DISABLE_SERVER_SIDE_CURSORS": True}, "DISABLE_SERVER_SIDE_CURSORS"),
        (POSTGRES, {"PORT": "6543"}, "its port is 6543"),
        (POSTGRES, {"HOST": "ep-cool-name-123456-pooler.us-east-2.aws.neon.tech"}, "-pooler."),
        (POSTGRES, {"HOST": "aws-0-eu-central-1.pooler.supabase.com"}, ".pooler.supabase.com"),
        (POSTGRES, {"HOST": "shop.proxy-abcdefghijkl.eu-central-1.rds.amazonaws.com"}, ".proxy-"),
        (MYSQL, {"PORT": "6033"}, "its port is 6033"),
        (MYSQL, {"HOST": "shop.proxy-abcdefghijkl.cn-north-1.rds.amazonaws.com.cn"}, ".proxy-"),
    ],
)
def test_lock_sessions_through_what_looks_like_a_pooler(
    settings: Any, monkeypatch: pytest.MonkeyPatch, alias: Any, changes: dict[str, Any], why: str
) -> None:
    database = alias["OPTIONS"]["database"]
    with database_alias("direct", database) as direct:
        for key, value in changes.items():
            monkeypatch.setitem(connections.settings[database], key, value)
        settings.DISTLOCK = {"default": alias}
        ((identity, text),) = found()
        assert identity == "distlock.W005"
        assert why in text
        options = {"database": database, "session_database": direct}
        settings.DISTLOCK = {"default": {**alias, "OPTIONS": options}}
        assert found() == []


@pytest.mark.parametrize(
    "host", ["db.supabase.com", "ep-cool-name.aws.neon.tech", "shop.cluster-abc.eu-central-1.rds.amazonaws.com", None]
)
def test_hosts_that_are_no_poolers(settings: Any, monkeypatch: pytest.MonkeyPatch, host: str | None) -> None:
    monkeypatch.setitem(connections.settings["postgres"], "HOST", host)
    settings.DISTLOCK = {"default": POSTGRES}
    assert found() == []


def test_a_pool_of_djangos_does_no_harm(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lock sessions are opened outside of it; what a lock inside atomic() needs is the transaction."""
    monkeypatch.setitem(connections.settings["postgres"], "OPTIONS", {"pool": True})
    settings.DISTLOCK = {"default": POSTGRES}
    assert found() == []


@pytest.mark.usefixtures("databases")
def test_servers_that_refuse_lock_sessions(settings: Any) -> None:
    """Only ``check --database`` connects; and nothing stays open."""
    settings.DISTLOCK = {
        "default": {**POSTGRES, "OPTIONS": {"database": "pgbouncer"}},
        "fine": POSTGRES,
        "other": MYSQL,
        "broken": {"BACKEND": "no.such.Thing"},
    }
    assert "distlock.W006" not in dict(found())
    everywhere = found("database", databases=["default", "postgres", "pgbouncer", "mariadb"])
    refused = [text for identity, text in everywhere if identity == "distlock.W006"]
    assert len(refused) == 1
    assert "'default' go through a pooler" in refused[0]
    assert "distlock.W006" not in dict(found("database", databases=["postgres"]))
    assert not list(registry.backends())


def test_the_tag_alone_connects_to_nothing(settings: Any) -> None:
    """Django 6.1 gives each check all the databases, whether --database was written or not."""
    settings.DISTLOCK = {"default": {**POSTGRES, "OPTIONS": {"database": "pgbouncer"}}, "other": MYSQL}
    assert "distlock.W006" not in dict(found(databases=list(connections)))


@pytest.mark.parametrize("backend", [POSTGRES, MYSQL])
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
    settings.DISTLOCK = {"default": {**POSTGRES, "OPTIONS": {"database": "postgres", "session_database": "away"}}}
    assert check_sessions(None, databases=["away"]) == []


def test_waiting_for_ever(settings: Any) -> None:
    """Only where it is asked for a deployment."""
    settings.DISTLOCK = {"default": {**MEMORY, "TIMEOUT": None}, "other": MEMORY}
    assert found() == []
    ((identity, text),) = found(include_deployment_checks=True)
    assert identity == "distlock.W007"
    assert "'default'" in text


@pytest.mark.parametrize(("ttl", "ids"), [(0.5, ["distlock.W008"]), (2.9, ["distlock.W008"]), (3, []), (30, [])])
def test_a_ttl_that_is_too_short(settings: Any, ttl: float, ids: list[str]) -> None:
    settings.DISTLOCK = {"default": {**MEMORY, "TTL": ttl}}
    assert [identity for identity, _ in found()] == ids


@pytest.mark.parametrize("backend", ["locmem.LocMemCache", "dummy.DummyCache", "db.DatabaseCache"])
def test_a_cache_that_is_no_redis(settings: Any, backend: str) -> None:
    settings.CACHES = {"default": {"BACKEND": f"django.core.cache.backends.{backend}", "LOCATION": "x"}}
    settings.DISTLOCK = {"default": {"BACKEND": f"{BACKENDS}.redis.RedisBackend"}}
    ((identity, text),) = found()
    assert identity == "distlock.E003"
    assert "not one of django-redis" in text


# routes


class Plain(View):
    def get(self, request: Any, **kwargs: Any) -> HttpResponse:
        return HttpResponse()


@method_decorator(advisory_lock("account:{id}"), name="dispatch")
class Hidden(Plain):
    """Whose dispatch takes anything, so that the decorator cannot tell."""


@method_decorator(advisory_lock("user:{request.user.pk}"), name="dispatch")
class OfUser(Plain):
    pass


@advisory_lock("outer")
@lock_all(["a:{id}", "b:{other}"])
def two(request: Any, **kwargs: Any) -> HttpResponse:
    return HttpResponse()


@advisory_lock("shop:{id}")
async def shop(request: Any, **kwargs: Any) -> HttpResponse:
    return HttpResponse()


@advisory_lock("exact:{id}")
def exact(request: Any, id: int = 1) -> HttpResponse:
    return HttpResponse()


def routes(settings: Any, monkeypatch: pytest.MonkeyPatch, patterns: Sequence[Any]) -> list[str]:
    """The messages for these routes."""
    module = ModuleType("routes_of_a_test")
    module.urlpatterns = list(patterns)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    settings.ROOT_URLCONF = module.__name__
    messages = found()
    assert {identity for identity, _ in messages} <= {"distlock.E009"}
    return [text for _, text in messages]


@pytest.mark.parametrize("view", [Hidden.as_view(), shop, two], ids=["class", "async", "stacked"])
def test_a_route_that_does_not_give_what_the_name_needs(
    settings: Any, monkeypatch: pytest.MonkeyPatch, view: Any
) -> None:
    (text,) = routes(settings, monkeypatch, [path("accounts/<int:pk>/<other>", view)])
    assert "The route 'accounts/<int:pk>/<other>' calls tests.engines.test_checks_servers." in text
    assert "needs 'id'" in text
    assert "gives other, pk." in text
    assert routes(settings, monkeypatch, [path("accounts/<int:id>/<other>", view)]) == []


def test_what_a_route_gives(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, by the one above it, by a group, and by its extra arguments."""
    view = Hidden.as_view()
    patterns = [
        path("a/<int:id>/", include([path("b/", view)])),
        path("c/", include([path("d/", view)]), {"id": 1}),
        path("e/", view, {"id": 1}),
        re_path(r"^f/(?P<id>\d+)/$", view),
        path("g/", OfUser.as_view()),
        path("h/", exact),
        path("i/", RedirectView.as_view(url="/")),
        path("j/", lambda request: HttpResponse()),
    ]
    assert routes(settings, monkeypatch, patterns) == []
    (text,) = routes(settings, monkeypatch, [re_path(r"^k/(\d+)/$", view)])
    assert "gives nothing" in text


def test_no_routes_at_all(settings: Any) -> None:
    settings.ROOT_URLCONF = "no.such.module"
    assert found() == []
    del settings.ROOT_URLCONF
    assert found() == []
