"""What the endpoints refuse, and what they do not reveal."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.core import signing
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_distlock.editing.grants import SALT
from django_distlock.editing.http.beats import LONGEST_BODY
from django_distlock.models import WebLease
from testproject.articles.models import Article
from testproject.articles.views import LockedEdit
from tests.editing.people import CHOICE, GRANT, LEASE, Person, body, hidden, is_held, refused, row

JSON = "application/json"


@pytest.fixture
def path(article: Article) -> str:
    return f"/articles/{article.pk}/"


def test_e2_grants_that_are_forged_expired_or_foreign(
    ada: Person, bo: Person, article: Article, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = ada.open(path)[GRANT]
    facts = signing.loads(grant, salt=SALT)
    with monkeypatch.context() as patch:
        patch.setattr(signing.time, "time", lambda: 1.0)
        old = signing.dumps(facts, salt=SALT)
    last = "A" if grant[-1] != "A" else "B"
    forged = ("", "no grant", grant.split(":")[0], grant[:-1] + last, signing.dumps(facts, salt="another"))
    for person, text, detail in [(ada, each, "forged") for each in forged] + [
        (ada, old, "expired"),
        (bo, grant, "foreign"),
    ]:
        assert person.ask("claim", text) == {"state": "error", "reason": "grant", "detail": detail}
        if text:  # a form without the field is another matter
            refused(person.save(path, {GRANT: text}, body="x"))
    assert row(article) is None
    assert body() == "On Saturday."


def test_e2_a_grant_of_another_host(ada: Person, path: str, settings: Any) -> None:
    """Two tenants of one project: user 5 here is not user 5 there."""
    settings.ALLOWED_HOSTS = ["one.example", "two.example"]
    page = ada.client.get(path, headers={"host": "one.example"})
    item = {"verb": "claim", "grant": hidden(page)[GRANT], "lease": "a" * 32}
    for host, answer in {"two": ("error", "foreign"), "one": ("held", None)}.items():
        found = ada.beat(path, item, headers={"host": f"{host}.example"}).json()
        assert (found["state"], found.get("detail")) == answer


def test_e2_a_grant_of_another_object(ada: Person, article: Article, path: str) -> None:
    grant = ada.open(path)[GRANT]
    other = Article.objects.create(title="Another", body="...")
    page = f"/articles/{other.pk}/"
    refused(ada.save(page, {GRANT: grant}, title="x"))
    answer = ada.beat(page, {"verb": "claim", "grant": grant, "lease": "a" * 32}).json()
    assert (answer["state"], answer["reason"]) == ("error", "grant")
    assert row(article) is row(other) is None
    assert not Article.objects.filter(title="x").exists()


def test_leases_of_other_people_are_not_renewed_adopted_released_or_told(ada: Person, bo: Person, path: str) -> None:
    mine = ada.hold(path)
    page, theirs = bo.client.get(path), bo.open(path)[GRANT]
    assert bo.ask("renew", theirs, lease=mine[LEASE])["state"] == "lost"
    adopted = bo.ask("adopt", theirs, previous=mine[LEASE])
    assert (adopted["state"], adopted["holder"]["own"]) == ("busy", False)
    bo.ask("release", theirs, lease=mine[LEASE])
    assert ada.renew(mine)["state"] == "held"
    texts = [
        page.content.decode(),
        *(json.dumps(each) for each in (adopted, *map(bo.ask, ("claim", "watch"), [theirs] * 2))),
    ]
    assert not [text for text in texts if mine[LEASE] in text]


def test_e3_a_log_out_ends_the_lease_with_its_ttl(ada: Person, article: Article, path: str, settings: Any) -> None:
    """The script is told by the answers of the view: to the log-in page, or by 401 where visitors may see the page."""
    mine, public = ada.hold(path), f"/function/{article.pk}/"
    theirs = ada.open(public)
    ada.client.logout()
    for verb in ("renew", "release", "watch"):
        assert ada.beat(path, {"verb": verb, **{"grant": mine[GRANT], "lease": mine[LEASE]}}).status_code == 302
        answer = ada.beat(public, {"verb": verb, "grant": theirs[GRANT], "lease": mine[LEASE]})
        assert (answer.status_code, answer.json()) == (401, {"reason": "logged_out"})
    assert is_held(article)


GOOD = {"verb": "claim", "grant": "", "lease": "12345678"}
MALFORMED = [
    *(
        json.dumps({**GOOD, **each}).encode()
        for each in ({"verb": "steal"}, {"lease": ""}, {"lease": "short"}, {"lease": ["12345678"]}, {"grant": 5})
    ),
    *(json.dumps({**GOOD, "previous": text}).encode() for text in ("x", 5, "\ud800345678")),
    *(b"", b"{", b"[]", b"{}", b"5", b"[" * 60_000),
]


def test_malformed_beats_and_those_without_a_csrf_token(ada: Person, path: str) -> None:
    """None of them is taken for a form."""
    for text in MALFORMED:
        answer = ada.client.post(path, text, content_type=JSON, headers={"Distlock-Edit": "1"})
        assert (answer.status_code, text[:90]) == (400, text[:90])
    body = {**GOOD, "title": "By a beat.", "body": "x", "section": "news"}
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert ada.client.post(path, "title=x", content_type=kind, headers={"Distlock-Edit": "1"}).status_code == 400
    assert ada.beat(path, body).json()["reason"] == "grant"
    assert ada.beat(path, " " * (LONGEST_BODY + 1)).status_code == 413
    strict, item = Person(ada.user, enforce_csrf_checks=True), {"verb": "watch", "grant": ""}
    assert strict.beat(path, item).status_code == 403
    asked = strict.client.get(path, headers={"Distlock-Edit": "token"})
    assert (asked["Cache-Control"], set(asked.json())) == ("no-store", {"csrf"})
    assert strict.beat(path, item, headers={"X-CSRFToken": asked.json()["csrf"]}).status_code == 200


def test_e16_beats_cost_one_update_and_write_no_session(ada: Person, path: str, settings: Any) -> None:
    settings.SESSION_SAVE_EVERY_REQUEST = True
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.db"
    mine = ada.hold(path)
    item = {"verb": "renew", "grant": mine[GRANT], "lease": mine[LEASE], "session": True}
    session = Session.objects.filter(pk=ada.client.session.session_key)
    session.update(expire_date=timezone.now() + timedelta(seconds=90))
    with CaptureQueriesContext(connection) as queries:
        answer = ada.beat(path, item)
    texts = [query["sql"] for query in queries]
    assert ["weblease" in text for text in texts if "UPDATE" in text] == [True]
    # the session, the user, the end of the session, the object, and where no RETURNING is used the row
    assert len(texts) <= 6, texts
    assert "sessionid" not in answer.cookies
    assert 0 < answer.json()["session_ends_in"] <= 90
    assert session.get().expire_date < timezone.now() + timedelta(seconds=91)

    def gone(execute: Any, sql: str, *more: Any) -> Any:
        if "weblease" in sql:
            raise OperationalError("gone")
        return execute(sql, *more)

    with connection.execute_wrapper(gone):  # without a database
        assert ada.beat(path, item).status_code == 503


@pytest.mark.parametrize("page", ["/admin/articles/article/{}/change/", "/guarded/{}/", "/guarded-function/{}/"])
def test_e3_a_permission_that_is_lost_tells_nothing(ada: Person, bo: Person, article: Article, page: str) -> None:
    """By a decorator, a mixin, or the admin: one answer, whatever became of the object."""
    path = page.format(article.pk)
    mine = bo.hold(path)
    bo.user.user_permissions.clear()
    found = set()
    for change in (lambda: None, lambda: Article.objects.update(body="By Ada."), lambda: article.delete()):
        change()
        for verb in ("renew", "claim", "watch", "takeover"):
            answer = bo.beat(path, {"verb": verb, "grant": mine[GRANT], "lease": "a" * 32})
            found.add(
                (answer.status_code, answer.content[:20] if answer.status_code != 200 else answer.json()["reason"])
            )
    assert len(found) == 1, found


def test_e3_out_of_sight_and_deleted_are_the_same(
    ada: Person, bo: Person, article: Article, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = bo.open(path)[GRANT]
    ada.hold(path)
    monkeypatch.setattr(LockedEdit, "get_queryset", lambda view: Article.objects.filter(title="Mine"))
    hidden_from_bo = bo.ask("watch", grant)
    article.delete()
    assert bo.ask("watch", grant) == hidden_from_bo
    assert hidden_from_bo["reason"] == "deleted"


def test_e17_e20_pages_claim_with_when_open_alone(
    ada: Person, bo: Person, article: Article, path: str, settings: Any
) -> None:
    assert "Cookie" in ada.client.get(path)["Vary"], "the page is in no shared cache"
    assert not WebLease.rows.exists()
    settings.DISTLOCK_EDITING = {"WHEN": "open"}
    for name, value in {"Sec-Purpose": "prefetch;prerender", "Purpose": "prefetch", "X-Moz": "prefetch"}.items():
        ada.client.get(path, headers={name: value})
    assert not WebLease.rows.exists(), "a prefetch is no visit"
    fields = ada.open(path)
    found = row(article)
    assert fields[LEASE] == found.lease
    assert (found.expires_at - found.since) // 1_000_000 == 900
    assert "Ada is editing this." in bo.client.get(path).content.decode()
    adopted = ada.ask("adopt", fields[GRANT], previous=fields[LEASE])
    assert adopted["state"] == "held"
    assert adopted["expires_in"] <= 150


def test_labels_and_texts_are_no_markup(ada: Person, bo: Person, path: str) -> None:
    evil = "</script><img src=x onerror=alert(1)>\u202e"
    ada.user.first_name = evil
    ada.user.save()
    theirs = bo.open(path)
    assert ada.save(path, title=evil, body=evil).status_code == 302
    text = refused(bo.save(path, theirs, body=evil))
    assert "<img" not in text
    assert "\u202e" not in text[: text.index("has saved this since")]  # the label
    assert "<img" not in bo.client.get(path).content.decode()


# a log-in in another tab rotates the CSRF token: the form that is refused then keeps its text

HOST = {"Origin": "http://testserver"}
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')


def test_e7_the_text_is_kept_and_sent_again(ada: Person, path: str, settings: Any) -> None:
    """Other forms get Django's page: of a stranger, of another site."""
    settings.CSRF_FAILURE_VIEW = "django_distlock.editing.http.csrf.csrf_failure"
    client = Person(ada.user, enforce_csrf_checks=True).client
    page = client.get(path)
    data = {"title": "x", "body": "By Ada.", "section": "news", **hidden(page)}
    data["csrfmiddlewaretoken"] = TOKEN.findall(page.content.decode())[0]
    client.cookies.pop("csrftoken")
    client.get(path)  # another token
    evil = {"Origin": "http://evil.example"}
    for spoil, headers in (({GRANT: ""}, HOST), ({GRANT: "forged"}, HOST), ({}, evil), ({}, {})):
        answer = client.post(path, {**data, **spoil}, headers=headers)
        assert (answer.status_code, "By Ada." in answer.content.decode()) == (403, False)
    answer = client.post(path, data, headers=HOST)
    text = answer.content.decode()
    assert (answer.status_code, "By Ada." in text, answer["X-Frame-Options"]) == (403, True, "DENY")
    again = {**data, **hidden(answer), "csrfmiddlewaretoken": TOKEN.findall(text)[0]}
    assert client.post(path, again, headers=HOST).status_code == 302
    assert body() == "By Ada."


def test_e18_nobody_takes_over_what_is_gone_without_being_asked(ada: Person, bo: Person, article: Article) -> None:
    path = f"/function/{article.pk}/"
    fields, _held = bo.open(path), ada.hold(path)
    before = row(article)
    Article.objects.filter(pk=article.pk).delete()
    refused(bo.save(path, fields, body="By Bo.", **{CHOICE: "overwrite"}), "By Bo.", "deleted")
    assert (row(article).lease, LogEntry.objects.count()) == (before.lease, 0)
