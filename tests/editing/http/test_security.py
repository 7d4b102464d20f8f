"""What the endpoints refuse, and what they do not reveal."""

from __future__ import annotations

import json
import re
import secrets
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.core import signing
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_distlock.editing.grants import SALT, open_grant, read_grant, sign
from django_distlock.editing.http.actions import MOST_ITEMS
from django_distlock.editing.http.endpoints import LONGEST_BODY
from django_distlock.editing.resources import resource_of
from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article
from tests.editing.people import BEAT, RELEASE, Person, hidden, is_held, row


def path_of(article: Article) -> str:
    return f"/articles/{article.pk}/"


@pytest.fixture
def grant(ada: Person, article: Article) -> str:
    return ada.open(path_of(article))["distlock_edit"]


def new() -> str:
    return secrets.token_hex(16)


class TestGrants:
    def test_forged_expired_or_foreign(self, ada: Person, bo: Person, article: Article, grant: str) -> None:
        facts = signing.loads(grant, salt=SALT)
        old = signing.dumps({**facts, "u": 1.0}, salt=SALT)
        last = "A" if grant[-1] != "A" else "B"
        forged = ("", "no grant", grant.split(":")[0], grant[:-1] + last, signing.dumps(facts, salt="another"))
        refused = [(ada, each, "forged") for each in forged] + [(ada, old, "expired"), (bo, grant, "foreign")]
        for person, text, detail in refused:
            answer = person.ask("claim", text, lease=new())
            assert answer == {"state": "error", "reason": "grant", "detail": detail}
            if text:  # a form without the field is another matter
                sent = {"title": "x", "body": "y", "section": "news", "distlock_edit": text}
                assert person.client.post(path_of(article), sent).status_code == 409
        assert row(article) is None
        assert not Article.objects.filter(title="x").exists()

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

    def test_of_another_object(self, ada: Person, article: Article, grant: str) -> None:
        """Or of a form that edits the object along: its first object would be saved with what was typed for this."""
        other = Article.objects.create(title="Another", body="...")
        sent = {"title": "x", "body": "y", "section": "news", "distlock_edit": grant}
        assert ada.client.post(path_of(other), sent).status_code == 409
        parent = Article.objects.create(title="Parent", body="...")
        signer = read_grant(ada.open(path_of(article))["distlock_edit"], None).principal
        opened = open_grant([resource_of(parent), resource_of(article)], principal=signer)
        sent["distlock_edit"] = sign(opened.grant)
        assert ada.client.post(path_of(article), sent).status_code == 409
        assert not Article.objects.filter(title="x").exists()


class TestLeases:
    def test_of_other_people(self, ada: Person, bo: Person, article: Article, grant: str) -> None:
        """They are not renewed, not adopted, not released and not told."""
        lease = ada.claim(grant)
        page = bo.client.get(path_of(article))
        theirs = hidden(page)["distlock_edit"]
        assert bo.ask("renew", theirs, lease=lease)["state"] == "lost"
        adopted = bo.ask("adopt", theirs, lease=new(), previous=lease)
        assert (adopted["state"], adopted["holder"]["own"]) == ("busy", False)
        assert bo.release([theirs], [lease]).status_code == 204
        assert ada.ask("renew", grant, lease=lease)["state"] == "held"
        texts = [page.content.decode(), json.dumps(adopted)]
        texts += [json.dumps(bo.ask(verb, theirs, lease=new())) for verb in ("claim", "watch")]
        assert not [text for text in texts if lease in text or ada.tab in text]

    def test_quota(self, ada: Person, article: Article, grant: str, settings: Any) -> None:
        settings.DISTLOCK_EDITING = {"MAX_HELD": 2}
        others = [Article.objects.create(title=str(number), body="...") for number in range(2)]
        for other in others:
            ada.claim(ada.open(path_of(other))["distlock_edit"])
        for verb in ("claim", "adopt"):
            assert ada.ask(verb, grant, lease=new()) == {"state": "error", "reason": "quota"}
        assert row(article) is None
        settings.DISTLOCK_EDITING = {"MAX_HELD": 2, "WHEN": "open"}
        assert ada.open(path_of(article))["distlock_edit_lease"] == ""
        assert row(article) is None


class TestRelease:
    def test_needs_id_and_field_alone(self, ada: Person, article: Article, grant: str, settings: Any) -> None:
        """Also after a log-out, where every view needs a log-in: a redirect would tell the script nothing."""
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
        lease = ada.claim(grant)
        ada.client.logout()
        answer = ada.beat({"verb": "renew", "grant": grant, "lease": lease})
        assert (answer.status_code, answer.json()) == (401, {"reason": "logged_out"})
        stranger = Client(enforce_csrf_checks=True)
        assert stranger.post(RELEASE, {"grant": grant, "lease": new()}).status_code == 204
        assert is_held(article)
        assert stranger.post(RELEASE, {"grant": grant, "lease": lease}).status_code == 204
        assert not is_held(article)

    def test_always_answers_204(self, ada: Person, article: Article, grant: str) -> None:
        kinds = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
        for body in (b"", b"{", b"[]", b'{"lease": 5, "grant": {}}', b"\xff" * 100, b"a=1&" * 2000):
            for kind in kinds:
                assert ada.client.post(RELEASE, body, content_type=kind).status_code == 204, (kind, body)
        assert ada.client.post(RELEASE, {f"a{number}": "1" for number in range(2000)}).status_code == 204
        assert ada.client.get(RELEASE).status_code == 204
        lease = ada.claim(grant)
        ada.client.post(RELEASE, {"grant": [grant], "lease": [lease]}, content_type="application/json")
        assert not is_held(article)


MALFORMED = [
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
]


class TestBeats:
    def test_malformed(self, ada: Person) -> None:
        for body in MALFORMED:
            answer = ada.client.post(BEAT, body, content_type="application/json")
            assert (answer.status_code, body[:90]) == (400, body[:90])
        assert ada.client.put(BEAT).status_code == 405
        item = {"verb": "watch", "grant": ""}
        assert ada.beat(*[item] * MOST_ITEMS).status_code == 200
        assert ada.beat(*[item] * (MOST_ITEMS + 1)).status_code == 400
        assert ada.client.post(BEAT, b" " * (LONGEST_BODY + 1), content_type="application/json").status_code == 413

    def test_without_a_database(self, ada: Person, article: Article, grant: str) -> None:
        def gone(execute: Any, sql: str, *more: Any) -> Any:
            if "editlease" in sql:
                raise OperationalError("gone")
            return execute(sql, *more)

        lease = ada.claim(grant)
        with connection.execute_wrapper(gone):
            assert ada.beat({"verb": "renew", "grant": grant, "lease": lease}).status_code == 503
            assert ada.release([grant], [lease]).status_code == 204

    def test_cost_one_update_and_write_no_session(
        self, ada: Person, article: Article, grant: str, settings: Any
    ) -> None:
        settings.SESSION_SAVE_EVERY_REQUEST = True
        settings.SESSION_ENGINE = "django.contrib.sessions.backends.db"
        lease = ada.claim(grant)
        session = Session.objects.filter(pk=ada.client.session.session_key)
        session.update(expire_date=timezone.now() + timedelta(seconds=90))
        with CaptureQueriesContext(connection) as queries:
            answer = ada.beat({"verb": "renew", "grant": grant, "lease": lease})
        texts = [query["sql"] for query in queries]
        assert ["editlease" in text for text in texts if "UPDATE" in text] == [True]
        assert len(texts) <= 4, texts  # the session, the user, and where no RETURNING is used the row
        assert "sessionid" not in answer.cookies
        assert 0 < answer.json()["session_ends_in"] <= 90
        assert session.get().expire_date < timezone.now() + timedelta(seconds=91)

    def test_need_a_csrf_token(self, ada: Person, article: Article, grant: str) -> None:
        strict = Person(ada.user, enforce_csrf_checks=True)
        item = {"verb": "claim", "grant": grant, "lease": new()}
        assert strict.beat(item).status_code == 403
        assert row(article) is None
        asked = strict.client.get(BEAT)
        assert asked["Cache-Control"] == "no-store"
        assert set(asked.json()) == {"csrf"}
        token = asked.json()["csrf"]
        assert strict.beat(item, headers={"X-CSRFToken": token}).status_code == 200


class TestPermissions:
    def test_one_that_is_lost_ends_the_lease(self, ada: Person, article: Article, settings: Any) -> None:
        grant = ada.open(f"/admin/articles/article/{article.pk}/change/")["distlock_edit"]
        lease = ada.claim(grant)
        ada.user.user_permissions.clear()
        forget()
        lost = ada.ask("renew", grant, lease=lease)
        assert lost == {"state": "lost", "reason": "permission", "by": "", "changed": None}
        assert not is_held(article)

    def test_no_existence_leak(self, ada: Person, bo: Person, article: Article) -> None:
        """A user who may no longer see an object gets one answer, with the same statements, whatever became of it."""
        path = f"/admin/articles/article/{article.pk}/change/"
        grant = bo.open(path)["distlock_edit"]
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
    def test_claim_with_when_open(self, ada: Person, bo: Person, article: Article, settings: Any) -> None:
        assert "Cookie" in ada.client.get(path_of(article))["Vary"], "the page is in no shared cache"
        assert not EditLeaseRow.rows.exists()
        settings.DISTLOCK_EDITING = {"WHEN": "open"}
        for name, value in {"Sec-Purpose": "prefetch;prerender", "Purpose": "prefetch", "X-Moz": "prefetch"}.items():
            ada.client.get(path_of(article), headers={name: value})
        assert not EditLeaseRow.rows.exists(), "a prefetch is no visit"
        fields = ada.open(path_of(article))
        found = row(article)
        assert fields["distlock_edit_lease"] == found.lease
        assert (found.expires_at - found.since) // 1_000_000 == 900
        page = bo.client.get(path_of(article))
        assert "Ada is editing this." in page.content.decode()
        adopted = ada.ask("adopt", fields["distlock_edit"], lease=new(), previous=fields["distlock_edit_lease"])
        assert adopted["state"] == "held"
        assert adopted["expires_in"] <= 60


def test_labels_and_texts_are_no_markup(ada: Person, bo: Person, article: Article) -> None:
    evil = "</script><img src=x onerror=alert(1)>\u202e"
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


# a log-in in another tab rotates the CSRF token: the form that is refused then keeps its text

HOST = {"Origin": "http://testserver"}
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')


@pytest.fixture
def strict(ada: Person, settings: Any) -> Person:
    settings.CSRF_FAILURE_VIEW = "django_distlock.editing.http.csrf.csrf_failure"
    return Person(ada.user, enforce_csrf_checks=True)


def test_the_text_is_kept_and_sent_again(strict: Person, article: Article) -> None:
    path = f"/articles/{article.pk}/"
    page = strict.client.get(path)
    old = TOKEN.findall(page.content.decode())[0]
    sent = {"title": "x", "body": "By Ada.", "section": "news", **hidden(page)}
    strict.client.cookies.pop("csrftoken")
    strict.client.get(path)  # another token
    refused = strict.client.post(path, {**sent, "csrfmiddlewaretoken": old}, headers=HOST)
    assert refused.status_code == 403
    text = refused.content.decode()
    assert "By Ada." in text
    assert refused["X-Frame-Options"] == "DENY"
    again = {**sent, **hidden(refused), "csrfmiddlewaretoken": TOKEN.findall(text)[0]}
    assert strict.client.post(path, again, headers=HOST).status_code == 302
    assert Article.objects.get().body == "By Ada."


def test_other_forms_get_djangos_page(strict: Person, article: Article) -> None:
    path = f"/articles/{article.pk}/"
    sent = {"body": "Chosen by a stranger.", **hidden(strict.client.get(path)), "csrfmiddlewaretoken": "x" * 32}
    for spoil, headers in (
        ({"distlock_edit": ""}, HOST),
        ({"distlock_edit": "forged"}, HOST),
        ({}, {"Origin": "http://evil.example"}),
        ({}, {}),
    ):
        refused = strict.client.post(path, {**sent, **spoil}, headers=headers)
        assert refused.status_code == 403
        assert "Chosen by a stranger." not in refused.content.decode()
