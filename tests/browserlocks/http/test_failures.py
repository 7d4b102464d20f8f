"""What goes wrong: the database, the body, the middleware, the address."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import django
import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connections, transaction

from django_distlock.browser.conf import config
from django_distlock.browser.http import endpoints
from tests.browserlocks.http.people import CSRF, LEASES, RENEW, Person, holder_of, new

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("crew")


class TestDatabase:
    @pytest.fixture
    def dead(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """The locks are in a database that nothing answers for."""
        monkeypatch.setitem(connections.settings, "dead", {**connections.settings["postgres"], "PORT": "1"})
        settings.DISTLOCK_BROWSER = {"DATABASE": "dead"}
        endpoints._down.clear()
        yield
        endpoints._down.clear()
        del connections["dead"]

    def test_is_down(self, ada: Person, caplog: pytest.LogCaptureFixture, dead: None) -> None:
        """503 with a time to come back; the log has one entry, and not one for each client."""
        grant = ada.grant("cart")
        with caplog.at_level(logging.WARNING, "django_distlock.browser"):
            responses = [ada.acquire(grant), ada.renew((new(), 1, grant)), ada.client.get(LEASES)]
            released = ada.release(new())
        for response in responses:
            assert (response.status_code, response.json()) == (503, {"reason": "database"})
            assert response["Retry-After"] == "2"
        assert released.status_code == 204
        ours = [record for record in caplog.records if record.name == "django_distlock.browser"]
        assert len(ours) == 1
        assert ours[0].exc_info is not None

    def test_is_logged_again_after_it_was_back(
        self, ada: Person, caplog: pytest.LogCaptureFixture, dead: None, settings: Any
    ) -> None:
        with caplog.at_level(logging.WARNING, "django_distlock.browser"):
            for _ in range(2):
                settings.DISTLOCK_BROWSER = {"DATABASE": "dead"}
                assert ada.client.get(LEASES).status_code == 503
                settings.DISTLOCK_BROWSER = {}
                assert ada.client.get(LEASES).status_code == 200
                endpoints._down.discard("dead")
        assert len([record for record in caplog.records if record.name == "django_distlock.browser"]) == 2

    def test_the_sessions_are_down(self, ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
        grant = ada.grant("cart")

        def fail(self: Any) -> Any:
            raise OperationalError("down")

        monkeypatch.setattr(SessionStore, "_get_session_from_db", fail)
        assert ada.acquire(grant).status_code == 503
        monkeypatch.undo()
        endpoints._down.clear()


WRONG: list[Any] = [None, [], "text", 5, {}, {"grant": 5}, {"grant": "x"}, {"grant": "x", "id": "short"}]
WRONG_WISHES = [
    {"ttl": "30"},
    {"ttl": 0},
    {"ttl": -1},
    {"ttl": True},
    {"ttl": float("nan")},
    {"queue": "yes"},
    {"queue": None},
    {"hidden": 1},
    {"id": "x" * 65},
    {"id": None},
    {"id": "' OR 1=1"},
    {"id": "ünïcödé-id"},
]
WRONG_RENEWALS = [
    {"leases": None},
    {"leases": {}},
    {"leases": [None]},
    {"leases": ["x"]},
    {"leases": [{}]},
    {"leases": [{"id": "x" * 8, "fence": 1}]},
    {"leases": [{"id": "x" * 8, "grant": "x"}]},
    {"leases": [{"id": "x" * 8, "grant": "x", "fence": 1, "ttl": "5"}]},
    *({"leases": [{"id": "x" * 8, "grant": "x", "fence": fence}]} for fence in ("1", 1.5, True, None, -1, 2**53)),
]


class TestBodies:
    @pytest.mark.parametrize("body", [*WRONG, *WRONG_WISHES], ids=repr)
    def test_of_an_acquire(self, ada: Person, body: Any) -> None:
        if body in WRONG_WISHES:
            body = {"grant": ada.grant("cart"), "id": new(), **body}
        self.is_refused(ada, LEASES, json.dumps(body))
        assert holder_of("cart") == ""

    @pytest.mark.parametrize("body", [*WRONG, *WRONG_RENEWALS], ids=repr)
    def test_of_a_renewal(self, ada: Person, body: Any) -> None:
        self.is_refused(ada, RENEW, json.dumps(body))

    @pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 20_000, b'{"leases": ' + b"9" * 5000 + b"}"])
    @pytest.mark.parametrize("path", [LEASES, RENEW])
    def test_that_are_no_json(self, ada: Person, path: str, body: bytes) -> None:
        self.is_refused(ada, path, body)

    def test_forms_are_no_json(self, ada: Person) -> None:
        response = ada.client.post(LEASES, {"grant": "x", "id": new()})
        assert response.status_code == 400

    def is_refused(self, ada: Person, path: str, body: str | bytes) -> None:
        response = ada.client.post(path, body, content_type="application/json")
        assert response.status_code == 400, response.content
        assert response.json()["reason"] == "request"
        assert response.json()["detail"]

    def test_more_members_than_known(self, ada: Person) -> None:
        """A newer script."""
        assert ada.acquire(ada.grant("cart"), more={"x": 1}).status_code == 201


class TestSettingsOfTheSite:
    def test_atomic_requests(self, ada: Person, bo: Person, atomic_requests: bool, settings: Any) -> None:
        """No request of the script is in a transaction: what it did is seen at once, and holds no row."""
        seen: list[bool] = []

        def permission(request: Any, name: str) -> bool:
            seen.append(transaction.get_connection().in_atomic_block)
            return True

        settings.DISTLOCK_BROWSER = {"PERMISSION": permission}
        grant = ada.grant("cart")
        lease, fence = ada.take(grant)
        assert ada.renewed(lease, fence, grant)["expires_in"] > 0
        assert bo.acquire(bo.grant("cart")).status_code == 409
        assert ada.leases()
        assert ada.release(lease).status_code == 204
        assert set(seen) == {False}

    @pytest.mark.skipif(django.VERSION < (5, 1), reason="LoginRequiredMiddleware came with Django 5.1")
    def test_login_required_middleware(self, settings: Any) -> None:
        """A redirect would tell the script nothing."""
        ada = Person()
        grant = ada.grant("cart")
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
        lease, fence = ada.take(grant)
        assert ada.renewed(lease, fence, grant)["expires_in"] > 0
        assert ada.client.get(CSRF).status_code == 200
        assert ada.client.get(f"{LEASES}events/").status_code == 204
        assert ada.release(lease).status_code == 204

    @pytest.mark.parametrize("append_slash", [False, True])
    def test_append_slash(self, ada: Person, settings: Any, append_slash: bool) -> None:
        """The addresses end with a slash. Without it nothing is acquired, and nothing fails."""
        settings.APPEND_SLASH = append_slash
        grant = ada.grant("cart")
        response = ada.post(LEASES.rstrip("/"), {"grant": grant, "id": new()})
        assert response.status_code in (301, 404)
        assert holder_of("cart") == ""
        ada.take(grant)

    def test_a_host_that_is_not_allowed(self, ada: Person) -> None:
        assert ada.acquire(ada.grant("cart"), headers={"host": "evil.example"}).status_code == 400

    @pytest.mark.parametrize(("method", "path"), [("put", LEASES), ("get", RENEW), ("delete", CSRF), ("patch", LEASES)])
    def test_methods(self, ada: Person, method: str, path: str) -> None:
        response = getattr(ada.client, method)(path)
        assert response.status_code == 405
        assert response["Allow"]
        assert response.json() == {"reason": "method"}

    def test_a_project_without_sessions_and_users(self, settings: Any) -> None:
        settings.MIDDLEWARE = ["django.middleware.csrf.CsrfViewMiddleware"]
        visitor = Person()
        grant = visitor.grant("cart")
        lease, fence = visitor.take(grant)
        assert visitor.renewed(lease, fence, grant)["expires_in"] > 0
        assert Person().acquire(grant).json()["detail"] == "foreign"


class TestSetting:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"TLL": 5}, "unknown key 'TLL'"),
            ({"ttl": 5}, "unknown key 'ttl'"),
            ({"TTL": 0}, "TTL must be above zero"),
            ({"TTL": "5"}, "TTL must be a number"),
            ({"MAX_HOLD": 0}, "MAX_HOLD must be above zero"),
            ({"MAX_HELD": 0}, "MAX_HELD must be above zero"),
            ({"MAX_BODY": None}, "MAX_BODY must be an int"),
            ({"DATABASE": 5}, "DATABASE must be an alias"),
            ({"LABEL": 5}, "LABEL must be a callable"),
            ({"PERMISSION": "tests.browserlocks.http.test_failures.arefuse"}, "PERMISSION must be a plain function"),
            ({"PERMISSION": "no.such.module"}, "PERMISSION: No module named 'no'"),
            ({"PERMISSION": "json.nothing"}, "PERMISSION: "),
            ([], None),
            ([5], "must be a dict"),
        ],
    )
    def test_wrong_values(self, settings: Any, given: Any, message: str | None) -> None:
        settings.DISTLOCK_BROWSER = given
        if message is None:
            assert config().ttl == 30
        else:
            with pytest.raises(ImproperlyConfigured, match=message):
                config()

    def test_a_dotted_path(self, settings: Any, ada: Person) -> None:
        settings.DISTLOCK_BROWSER = {"PERMISSION": "tests.browserlocks.http.test_failures.refuse"}
        assert ada.acquire(ada.grant("cart")).json() == {"reason": "permission"}


def refuse(request: Any, name: str) -> bool:
    return False


async def arefuse(request: Any, name: str) -> bool:
    return False
