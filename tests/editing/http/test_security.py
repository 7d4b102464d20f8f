"""What the endpoints refuse, and what they do not reveal."""

from __future__ import annotations

import json
import re
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
from django_distlock.editing.http.permissions import Gate
from django_distlock.editing.resources import resource_of
from django_distlock.models import WebLease
from testproject.articles.models import Article
from testproject.articles.views import LockedEdit
from tests.editing.people import BEAT, GRANT, LEASE, RELEASE, Person, body, hidden, is_held, refused, row

JSON = "application/json"


@pytest.fixture
def path(article: Article) -> str:
    return f"/articles/{article.pk}/"


def test_e2_grants_that_are_forged_expired_or_foreign(ada: Person, bo: Person, article: Article, path: str) -> None:
    grant = ada.open(path)[GRANT]
    facts = signing.loads(grant, salt=SALT)
    old = signing.dumps({**facts, "u": 1.0}, salt=SALT)
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
        (found,) = ada.beat(item, headers={"host": f"{host}.example"}).json()["items"]
        assert (found["state"], found.get("detail")) == answer


def test_e2_a_grant_of_another_object(ada: Person, article: Article, path: str) -> None:
    """Or of a form that edits the object along: its first object would be saved with what was typed for this."""
    grant = ada.open(path)[GRANT]
    other = Article.objects.create(title="Another", body="...")
    refused(ada.save(f"/articles/{other.pk}/", {GRANT: grant}, title="x"))
    resources = [resource_of(other), resource_of(article)]
    opened = open_grant(resources, principal=read_grant(grant, None).principal)
    refused(ada.save(path, {GRANT: sign(opened.grant)}, title="x"))
    assert not Article.objects.filter(title="x").exists()


def test_leases_of_other_people_are_not_renewed_adopted_released_or_told(ada: Person, bo: Person, path: str) -> None:
    mine = ada.hold(path)
    page = bo.client.get(path)
    theirs = hidden(page)[GRANT]
    assert bo.ask("renew", theirs, lease=mine[LEASE])["state"] == "lost"
    adopted = bo.ask("adopt", theirs, previous=mine[LEASE])
    assert (adopted["state"], adopted["holder"]["own"]) == ("busy", False)
    assert bo.release([theirs], [mine[LEASE]]).status_code == 204
    assert ada.renew(mine)["state"] == "held"
    texts = [
        page.content.decode(),
        *(json.dumps(each) for each in (adopted, *map(bo.ask, ("claim", "watch"), [theirs] * 2))),
    ]
    assert not [text for text in texts if mine[LEASE] in text or ada.tab in text]


def test_quota(ada: Person, article: Article, path: str, settings: Any) -> None:
    settings.DISTLOCK_EDITING = {"MAX_HELD": 2}
    for number in range(2):
        ada.hold(f"/articles/{Article.objects.create(title=str(number), body='...').pk}/")
    grant = ada.open(path)[GRANT]
    for verb in ("claim", "adopt"):
        assert ada.ask(verb, grant) == {"state": "error", "reason": "quota"}
    settings.DISTLOCK_EDITING = {"MAX_HELD": 2, "WHEN": "open"}
    assert ada.open(path)[LEASE] == ""
    assert row(article) is None


def test_e3_a_release_needs_id_and_field_alone_and_always_answers_204(
    ada: Person, article: Article, path: str, settings: Any
) -> None:
    """Also after a log-out, where every view needs a log-in: a redirect would tell the script nothing."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    for text in (b"", b"{", b"[]", b'{"lease": 5, "grant": {}}', b"\xff" * 100, b"a=1&" * 2000):
        for kind in (JSON, "application/x-www-form-urlencoded", "multipart/form-data", "text/plain"):
            assert ada.client.post(RELEASE, text, content_type=kind).status_code == 204, (kind, text)
    assert ada.client.post(RELEASE, {f"a{number}": "1" for number in range(2000)}).status_code == 204
    assert ada.client.get(RELEASE).status_code == 204
    mine = ada.hold(path)
    ada.client.post(RELEASE, {"grant": [mine[GRANT]], "lease": [mine[LEASE]]}, content_type=JSON)
    assert not is_held(article)
    mine = ada.hold(path)
    ada.client.logout()
    answer = ada.beat({"verb": "renew", "grant": mine[GRANT], "lease": mine[LEASE]})
    assert (answer.status_code, answer.json()) == (401, {"reason": "logged_out"})
    stranger = Client(enforce_csrf_checks=True)
    for lease, held in (("a" * 32, True), (mine[LEASE], False)):
        assert stranger.post(RELEASE, {"grant": mine[GRANT], "lease": lease}).status_code == 204
        assert is_held(article) == held


ITEMS = [
    b"5",
    b'{"verb": "steal", "grant": ""}',
    b'{"verb": "claim", "grant": ""}',
    b'{"verb": "claim", "grant": "", "lease": "short"}',
    b'{"verb": "claim", "grant": "", "lease": ["12345678"]}',
]
MALFORMED = [
    *(b'{"tab": "12345678", "items": [%s]}' % item for item in ITEMS),
    b"",
    b"{",
    b"[]",
    b"{}",
    b'{"tab": "12345678"}',
    b'{"tab": "x", "items": []}',
    b"[" * 100_000,
    b'{"tab": "\\ud800345678", "items": []}',
]


def test_malformed_beats_and_those_without_a_csrf_token(ada: Person) -> None:
    for text in MALFORMED:
        assert (ada.client.post(BEAT, text, content_type=JSON).status_code, text[:90]) == (400, text[:90])
    assert ada.client.put(BEAT).status_code == 405
    item = {"verb": "watch", "grant": ""}
    assert ada.beat(*[item] * MOST_ITEMS).status_code == 200
    assert ada.beat(*[item] * (MOST_ITEMS + 1)).status_code == 400
    assert ada.client.post(BEAT, b" " * (LONGEST_BODY + 1), content_type=JSON).status_code == 413
    strict = Person(ada.user, enforce_csrf_checks=True)
    assert strict.beat(item).status_code == 403
    asked = strict.client.get(BEAT)
    assert (asked["Cache-Control"], set(asked.json())) == ("no-store", {"csrf"})
    assert strict.beat(item, headers={"X-CSRFToken": asked.json()["csrf"]}).status_code == 200


def test_e16_beats_cost_one_update_and_write_no_session(ada: Person, path: str, settings: Any) -> None:
    settings.SESSION_SAVE_EVERY_REQUEST = True
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.db"
    mine = ada.hold(path)
    item = {"verb": "renew", "grant": mine[GRANT], "lease": mine[LEASE]}
    session = Session.objects.filter(pk=ada.client.session.session_key)
    session.update(expire_date=timezone.now() + timedelta(seconds=90))
    with CaptureQueriesContext(connection) as queries:
        answer = ada.beat(item)
    texts = [query["sql"] for query in queries]
    assert ["weblease" in text for text in texts if "UPDATE" in text] == [True]
    assert len(texts) <= 4, texts  # the session, the user, and where no RETURNING is used the row
    assert "sessionid" not in answer.cookies
    assert 0 < answer.json()["session_ends_in"] <= 90
    assert session.get().expire_date < timezone.now() + timedelta(seconds=91)

    def gone(execute: Any, sql: str, *more: Any) -> Any:
        if "weblease" in sql:
            raise OperationalError("gone")
        return execute(sql, *more)

    with connection.execute_wrapper(gone):  # without a database
        assert ada.beat(item).status_code == 503
        assert ada.release([mine[GRANT]], [mine[LEASE]]).status_code == 204


def test_e3_a_permission_that_is_lost_ends_the_lease_and_tells_nothing(
    ada: Person, bo: Person, article: Article
) -> None:
    """One answer with the same statements, whatever became of the object."""
    path = f"/admin/articles/article/{article.pk}/change/"
    mine = bo.hold(path)
    bo.user.user_permissions.clear()
    Gate.forget()
    assert bo.renew(mine) == {"state": "lost", "reason": "permission", "by": "", "changed": None}
    assert not is_held(article)
    found: dict[str, set[str]] = {"claim": set(), "watch": set(), "takeover": set()}
    for change in (
        lambda: None,
        lambda: ada.hold(path),
        lambda: Article.objects.update(body="By Ada."),
        lambda: article.delete(),
    ):
        change()
        Gate.forget()
        for verb, answers in found.items():
            with CaptureQueriesContext(connection) as queries:
                answer = bo.ask(verb, mine[GRANT])
            answers.add(json.dumps([answer, [query["sql"].split("'")[0][:60] for query in queries]]))
    assert [len(answers) for answers in found.values()] == [1, 1, 1]


def test_e3_out_of_sight_and_deleted_are_the_same(
    ada: Person, bo: Person, article: Article, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = bo.open(path)[GRANT]
    ada.hold(path)
    monkeypatch.setattr(LockedEdit, "get_queryset", lambda view: Article.objects.filter(title="Mine"))
    Gate.forget()
    hidden_from_bo = bo.ask("watch", grant)
    article.delete()
    Gate.forget()
    assert bo.ask("watch", grant) == hidden_from_bo


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
    assert adopted["expires_in"] <= 60


def test_labels_and_texts_are_no_markup(ada: Person, bo: Person, path: str) -> None:
    evil = "</script><img src=x onerror=alert(1)>\u202e"
    ada.user.first_name = evil
    ada.user.save()
    theirs = bo.open(path)
    assert ada.save(path, title=evil, body=evil).status_code == 302
    text = refused(bo.save(path, theirs, body=evil))
    assert "<img" not in text
    assert "\u202e" not in text[text.index("role=") : text.index("<form")]  # the sentence with the label
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
