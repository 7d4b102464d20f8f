"""What the endpoints refuse, and what they do not reveal."""

from __future__ import annotations

import json
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.sessions.models import Session
from django.core import signing
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_distlock.editing.grants import SALT
from django_distlock.editing.http.actions import MOST_ITEMS
from django_distlock.editing.http.endpoints import LONGEST_BODY
from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article
from tests.editing.people import BEAT, RELEASE, Person, hidden, is_held, row

if TYPE_CHECKING:
    from collections.abc import Callable


def path_of(article: Article) -> str:
    return f"/articles/{article.pk}/"


@pytest.fixture
def grant(ada: Person, article: Article) -> str:
    return ada.open(path_of(article))["distlock_edit"]


def new() -> str:
    return secrets.token_hex(16)


class TestGrants:
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"),
            lambda text: "",
            lambda text: "no grant",
            lambda text: text.split(":")[0],
            lambda text: signing.dumps(signing.loads(text, salt=SALT), salt="another"),
        ],
    )
    def test_forged(self, ada: Person, article: Article, grant: str, spoil: Callable[[str], str]) -> None:
        answer = ada.ask("claim", spoil(grant), lease=new())
        assert answer == {"state": "error", "reason": "grant", "detail": "forged"}
        assert row(article) is None

    def test_expired(self, ada: Person, article: Article, grant: str) -> None:
        facts = signing.loads(grant, salt=SALT)
        old = signing.dumps({**facts, "u": 1.0}, salt=SALT)
        assert ada.ask("claim", old, lease=new())["detail"] == "expired"
        sent = {"title": "x", "body": "y", "section": "news", "distlock_edit": old}
        assert ada.client.post(path_of(article), sent).status_code == 409

    def test_foreign(self, ada: Person, bo: Person, article: Article, grant: str) -> None:
        assert bo.ask("claim", grant, lease=new())["detail"] == "foreign"
        assert row(article) is None
        sent = {"title": "x", "body": "y", "section": "news", "distlock_edit": grant}
        assert bo.client.post(path_of(article), sent).status_code == 409

    def test_of_another_object(self, ada: Person, article: Article, grant: str) -> None:
        other = Article.objects.create(title="Another", body="...")
        sent = {"title": "x", "body": "y", "section": "news", "distlock_edit": grant}
        assert ada.client.post(path_of(other), sent).status_code == 409
        other.refresh_from_db()
        assert other.title == "Another"

    def test_of_another_host(self, ada: Person, article: Article, settings: Any) -> None:
        """Two tenants of one project: user 5 here is not user 5 there."""
        settings.ALLOWED_HOSTS = ["one.example", "two.example"]
        page = ada.client.get(path_of(article), headers={"host": "one.example"})
        grant = hidden(page)["distlock_edit"]
        item = {"verb": "claim", "grant": grant, "lease": new()}
        there = ada.beat(item, headers={"host": "two.example"}).json()["items"][0]
        assert there["detail"] == "foreign"
        here = ada.beat(item, headers={"host": "one.example"}).json()["items"][0]
        assert here["state"] == "held"


class TestLeases:
    def test_of_other_people_are_not_renewed(self, ada: Person, bo: Person, article: Article, grant: str) -> None:
        lease = ada.claim(grant)
        theirs = bo.open(path_of(article))["distlock_edit"]
        assert bo.ask("renew", theirs, lease=lease)["state"] == "lost"
        adopted = bo.ask("adopt", theirs, lease=new(), previous=lease)
        assert (adopted["state"], adopted["holder"]["own"]) == ("busy", False)
        assert lease not in json.dumps(adopted)
        assert ada.ask("renew", grant, lease=lease)["state"] == "held"

    def test_of_other_people_are_not_released(self, ada: Person, bo: Person, article: Article, grant: str) -> None:
        lease = ada.claim(grant)
        theirs = bo.open(path_of(article))["distlock_edit"]
        assert bo.release([theirs], [lease]).status_code == 204
        assert is_held(article)

    def test_no_answer_and_no_page_has_a_foreign_id(
        self, ada: Person, bo: Person, article: Article, grant: str
    ) -> None:
        lease = ada.claim(grant)
        page = bo.client.get(path_of(article))
        texts = [page.content.decode()]
        theirs = hidden(page)["distlock_edit"]
        texts += [json.dumps(bo.ask(verb, theirs, lease=new())) for verb in ("claim", "watch")]
        assert not [text for text in texts if lease in text or ada.tab in text]

    def test_quota(self, ada: Person, article: Article, grant: str, settings: Any) -> None:
        settings.DISTLOCK_EDITING = {"MAX_HELD": 2}
        others = [Article.objects.create(title=str(number), body="...") for number in range(2)]
        for other in others:
            ada.claim(ada.open(path_of(other))["distlock_edit"])
        assert ada.ask("claim", grant, lease=new()) == {"state": "error", "reason": "quota"}
        assert row(article) is None
        settings.DISTLOCK_EDITING = {"MAX_HELD": 2, "WHEN": "open"}
        assert ada.open(path_of(article))["distlock_edit_lease"] == ""
        assert row(article) is None


class TestRelease:
    def test_needs_id_and_field_and_nothing_else(self, ada: Person, article: Article, grant: str) -> None:
        lease = ada.claim(grant)
        stranger = Client(enforce_csrf_checks=True)
        assert stranger.post(RELEASE, {"grant": grant, "lease": new()}).status_code == 204
        assert is_held(article)
        assert stranger.post(RELEASE, {"grant": grant, "lease": lease}).status_code == 204
        assert not is_held(article)

    def test_reserves_for_the_tab(self, ada: Person, bo: Person, article: Article, grant: str) -> None:
        lease = ada.claim(grant)
        ada.release([grant], [lease], reserve="1")
        theirs = bo.open(path_of(article))["distlock_edit"]
        assert bo.ask("claim", theirs, lease=new())["state"] == "busy"
        assert ada.ask("adopt", grant, lease=new(), previous=lease)["state"] == "held"

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"[]", b'{"lease": 5, "grant": {}}', b'{"lease": ["x"], "grant": ["y"]}', b"\xff" * 100]
    )
    def test_always_answers_204(self, ada: Person, body: bytes) -> None:
        for kind in ("application/json", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain"):
            assert ada.client.post(RELEASE, body, content_type=kind).status_code == 204
        assert ada.client.get(RELEASE).status_code == 204

    def test_json(self, ada: Person, article: Article, grant: str) -> None:
        lease = ada.claim(grant)
        ada.client.post(RELEASE, {"grant": [grant], "lease": [lease]}, content_type="application/json")
        assert not is_held(article)


class TestBeats:
    def test_after_a_log_out(self, ada: Person, article: Article, grant: str) -> None:
        lease = ada.claim(grant)
        ada.client.logout()
        answer = ada.beat({"verb": "renew", "grant": grant, "lease": lease})
        assert (answer.status_code, answer.json()) == (401, {"reason": "logged_out"})

    def test_after_a_log_out_where_every_view_needs_a_log_in(
        self, ada: Person, article: Article, grant: str, settings: Any
    ) -> None:
        """A redirect to the log-in page would tell the script nothing."""
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
        lease = ada.claim(grant)
        ada.client.logout()
        assert ada.beat({"verb": "renew", "grant": grant, "lease": lease}).status_code == 401
        assert ada.release([grant], [lease]).status_code == 204
        assert not is_held(article)

    def test_without_a_database(
        self, ada: Person, article: Article, grant: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from django_distlock import BackendUnavailable
        from django_distlock.editing import store

        def fail(*args: Any, **kwargs: Any) -> Any:
            raise BackendUnavailable

        lease = ada.claim(grant)
        monkeypatch.setattr(store, "renew", fail)
        monkeypatch.setattr(store, "release", fail)
        assert ada.beat({"verb": "renew", "grant": grant, "lease": lease}).status_code == 503
        assert ada.release([grant], [lease]).status_code == 204

    def test_of_a_user_who_was_deactivated(self, ada: Person, article: Article, grant: str) -> None:
        lease = ada.claim(grant)
        assert ada.user is not None
        ada.user.is_active = False
        ada.user.save()
        assert ada.beat({"verb": "renew", "grant": grant, "lease": lease}).status_code == 401

    def test_need_a_csrf_token(self, ada: Person, article: Article, grant: str) -> None:
        assert ada.user is not None
        strict = Person(ada.user, enforce_csrf_checks=True)
        item = {"verb": "claim", "grant": grant, "lease": new()}
        assert strict.beat(item).status_code == 403
        assert row(article) is None
        token = strict.client.get(BEAT).json()["csrf"]
        assert strict.beat(item, headers={"X-CSRFToken": token}).status_code == 200

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"{}",
            b'{"tab": "12345678"}',
            b'{"tab": "x", "items": []}',
            b'{"tab": "12345678", "items": [5]}',
            b'{"tab": "12345678", "items": [{"verb": "steal", "grant": ""}]}',
            b'{"tab": "12345678", "items": [{"verb": "claim", "grant": ""}]}',
            b'{"tab": "12345678", "items": [{"verb": "claim", "grant": "", "lease": "short"}]}',
            b'{"tab": "12345678", "items": [{"verb": "claim", "grant": "", "lease": ["12345678"]}]}',
            b"[" * 100_000,
            b'{"tab": "\\ud800345678", "items": []}',
        ],
    )
    def test_malformed(self, ada: Person, body: bytes) -> None:
        assert ada.client.post(BEAT, body, content_type="application/json").status_code == 400

    def test_too_many_items_and_too_long(self, ada: Person) -> None:
        item = {"verb": "watch", "grant": ""}
        assert ada.beat(*[item] * MOST_ITEMS).status_code == 200
        assert ada.beat(*[item] * (MOST_ITEMS + 1)).status_code == 400
        assert ada.client.post(BEAT, b" " * (LONGEST_BODY + 1), content_type="application/json").status_code == 413

    def test_other_methods(self, ada: Person) -> None:
        assert ada.client.put(BEAT).status_code == 405
        answer = ada.client.get(BEAT)
        assert answer["Cache-Control"] == "no-store"
        assert set(answer.json()) == {"csrf"}

    @pytest.mark.parametrize("every", [True, False])
    def test_write_no_session(self, ada: Person, article: Article, grant: str, settings: Any, every: bool) -> None:
        settings.SESSION_SAVE_EVERY_REQUEST = every
        settings.SESSION_ENGINE = "django.contrib.sessions.backends.db"
        before = Session.objects.get(pk=ada.client.session.session_key)
        Session.objects.filter(pk=before.pk).update(expire_date=timezone.now() + timedelta(seconds=90))
        with CaptureQueriesContext(connection) as queries:
            answer = ada.beat({"verb": "claim", "grant": grant, "lease": new()})
        assert not [query["sql"] for query in queries if "UPDATE" in query["sql"] and "session" in query["sql"]]
        assert "sessionid" not in answer.cookies
        assert 60 < answer.json()["session_ends_in"] <= 90
        after = Session.objects.get(pk=before.pk)
        assert after.expire_date < timezone.now() + timedelta(seconds=91)

    def test_a_renewal_is_one_update(self, ada: Person, article: Article, grant: str) -> None:
        lease = ada.claim(grant)
        with CaptureQueriesContext(connection) as queries:
            assert ada.ask("renew", grant, lease=lease)["state"] == "held"
        text = [query["sql"] for query in queries]
        assert sum("UPDATE" in one and "editlease" in one for one in text) == 1
        # the session, the user, and where no RETURNING is used the row
        assert len(text) <= 4, text


class TestPermissions:
    def test_one_that_is_lost_ends_the_lease(self, ada: Person, article: Article, settings: Any) -> None:
        grant = ada.open(f"/admin/articles/article/{article.pk}/change/")["distlock_edit"]
        lease = ada.claim(grant)
        assert ada.user is not None
        ada.user.user_permissions.clear()
        forget()
        lost = ada.ask("renew", grant, lease=lease)
        assert lost == {"state": "lost", "reason": "permission", "by": "", "changed": None}
        assert not is_held(article)

    def test_no_existence_leak(self, ada: Person, bo: Person, article: Article) -> None:
        """A user who may no longer see an object gets one answer, with the same statements, whatever became of it."""
        path = f"/admin/articles/article/{article.pk}/change/"
        grant = bo.open(path)["distlock_edit"]
        assert bo.user is not None
        bo.user.user_permissions.clear()
        found = []
        for change in (
            lambda: None,
            lambda: ada.claim(ada.open(path)["distlock_edit"]),
            lambda: Article.objects.update(body="By Ada."),
            lambda: article.delete(),
        ):
            change()
            forget()
            for verb in ("claim", "watch", "takeover"):
                with CaptureQueriesContext(connection) as queries:
                    answer = bo.ask(verb, grant, lease="a" * 32)
                shapes = [query["sql"].split("'")[0][:60] for query in queries]
                found.append((verb, answer, shapes))
        for verb in ("claim", "watch", "takeover"):
            assert len({json.dumps(one) for one in found if one[0] == verb}) == 1

    def test_out_of_sight_and_deleted_are_the_same(
        self, ada: Person, bo: Person, article: Article, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from testproject.articles.views import LockedEdit

        grant = bo.open(path_of(article))["distlock_edit"]
        ada.claim(ada.open(path_of(article))["distlock_edit"])
        monkeypatch.setattr(LockedEdit, "get_queryset", lambda view: Article.objects.filter(title="Mine"))
        forget()
        hidden_from_bo = bo.ask("watch", grant)
        article.delete()
        forget()
        assert bo.ask("watch", grant) == hidden_from_bo


def forget() -> None:
    from django_distlock.editing.http.permissions import Gate

    Gate.forget()


class TestGets:
    def test_claim_nothing(self, ada: Person, article: Article) -> None:
        ada.open(path_of(article))
        assert not EditLeaseRow.rows.exists()

    def test_claim_with_when_open(self, ada: Person, bo: Person, article: Article, settings: Any) -> None:
        settings.DISTLOCK_EDITING = {"WHEN": "open"}
        fields = ada.open(path_of(article))
        found = row(article)
        assert found is not None
        assert fields["distlock_edit_lease"] == found.lease
        assert (found.expires_at - found.since) // 1_000_000 == 900
        page = bo.client.get(path_of(article))
        assert "Ada is editing this." in page.content.decode()
        adopted = ada.ask("adopt", fields["distlock_edit"], lease=new(), previous=fields["distlock_edit_lease"])
        assert adopted["state"] == "held"
        assert adopted["expires_in"] <= 60

    @pytest.mark.parametrize(
        "headers", [{"Sec-Purpose": "prefetch;prerender"}, {"Purpose": "prefetch"}, {"X-Moz": "prefetch"}]
    )
    def test_a_prefetch_is_no_visit(
        self, ada: Person, article: Article, settings: Any, headers: dict[str, str]
    ) -> None:
        settings.DISTLOCK_EDITING = {"WHEN": "open"}
        ada.client.get(path_of(article), headers=headers)
        assert not EditLeaseRow.rows.exists()

    def test_the_page_is_in_no_shared_cache(self, ada: Person, article: Article) -> None:
        page = ada.client.get(path_of(article))
        assert "Cookie" in page["Vary"]


def test_labels_and_texts_are_no_markup(ada: Person, bo: Person, article: Article) -> None:
    evil = "</script><img src=x onerror=alert(1)>\u202e"
    assert ada.user is not None
    ada.user.first_name = evil
    ada.user.save()
    theirs = bo.open(path_of(article))
    sent = {"title": evil, "body": evil, "section": "news", **ada.open(path_of(article))}
    assert ada.client.post(path_of(article), sent).status_code == 302
    refused = bo.client.post(path_of(article), {"title": "x", "body": evil, "section": "news", **theirs})
    assert refused.status_code == 409
    text = refused.content.decode()
    assert "<img" not in text
    assert "\u202e" not in text[text.index("role=") : text.index("<form")]  # the sentence with the label
    assert "<img" not in bo.client.get(path_of(article)).content.decode()
