"""A beat asks a view outside of its request: what it cannot ask it neither grants nor takes for a deletion."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.urls import clear_url_caches

from django_distlock.editing.grants import read_grant, sign
from django_distlock.editing.versions import Inline
from testproject.articles.models import Article
from tests.editing import site
from tests.editing.people import GRANT, Person, is_held, refused


def is_unknown(answer: dict[str, Any]) -> bool:
    """Does the answer grant nothing, and say nothing of the object?"""
    return answer["state"] == "error" and answer["reason"] in ("view", "database")


def test_a_view_that_is_prepared_in_dispatch_has_no_lock_and_says_so(
    ada: Person, article: Article, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"/prepared/{article.pk}/"
    fields = ada.open(path)
    with caplog.at_level(logging.WARNING):
        for verb in ("claim", "watch", "adopt", "renew", "takeover"):
            answer = ada.ask(verb, fields[GRANT], previous="a" * 32, fresh=True)
            assert is_unknown(answer), (verb, answer)
    (named,) = [record for record in caplog.records if "Prepared" in record.getMessage()]
    assert "section" in str(named.exc_info[1])
    assert not is_held(article)
    assert ada.save(path, fields).status_code == 302


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("get_queryset", OperationalError("x")),
        ("may_edit", AssertionError()),
        ("permission", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x")),
    ],
)
def test_whatever_a_view_raises(
    ada: Person, bo: Person, article: Article, monkeypatch: pytest.MonkeyPatch, place: str, error: Exception
) -> None:
    """It takes nothing from the holder, and leaves the other forms of the page alone."""
    path, free = (
        f"/{'by-call' if place == 'permission' else 'cheerful'}/{article.pk}/",
        Article.objects.create(title="x"),
    )
    mine, theirs = ada.hold(path), bo.open(path)[GRANT]
    others = [bo.open(f"/edit/{each.pk}/")[GRANT] for each in (article, free)]

    def fail(*args: Any) -> bool:
        raise error

    with monkeypatch.context() as patch:
        if place == "permission":
            patch.setitem(site.RULES, place, fail)
        else:
            patch.setattr(site.Cheerful, place, fail)
        items = [("takeover", theirs), ("watch", theirs), ("watch", others[0]), ("claim", others[1]), ("claim", theirs)]
        reply = bo.beat(*[{"verb": verb, "grant": grant, "lease": "b" * 32} for verb, grant in items])
    assert reply.status_code == 200
    answers = reply.json()["items"]
    assert [is_unknown(answer) for answer in answers] == [True, True, False, False, True]
    assert "Ada" not in str(answers[:2])
    assert answers[2]["holder"]["label"] == "Ada"
    assert answers[3]["state"] == "held"
    assert ada.renew(mine)["state"] == "held"


def test_a_takeover_that_cannot_be_asked_is_not_granted(
    ada: Person, boss: Person, article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/edit/{article.pk}/"
    mine, theirs = ada.hold(path), boss.open(path)[GRANT]
    monkeypatch.setattr(site.Edit, "may_take_over", lambda view: True)  # a TypeError
    assert boss.ask("watch", theirs).get("can_take_over", False) is False
    assert boss.ask("takeover", theirs)["state"] == "error"
    assert ada.renew(mine)["state"] == "held"


def test_an_address_that_is_gone_is_no_deletion(ada: Person, article: Article, settings: Any) -> None:
    grant = ada.open(f"/cheerful/{article.pk}/")[GRANT]
    settings.ROOT_URLCONF = "testproject.urls"  # a new version of the project
    clear_url_caches()
    assert is_unknown(ada.ask("claim", grant))


def test_an_object_that_is_named_in_the_query(ada: Person, bo: Person, article: Article) -> None:
    path = f"/query/?next=%2Fa%3Fb&id={article.pk}&q=%C3%A4+%26"
    theirs = bo.open(path)
    assert bo.ask("watch", theirs[GRANT], fresh=True)["state"] == "free"
    mine = ada.hold(path)
    answer = bo.ask("claim", theirs[GRANT])
    assert (answer["state"], answer["holder"]["label"]) == ("busy", "Ada")
    refused(bo.save(path, theirs))
    ada.give_back(mine)
    article.delete()
    assert bo.ask("watch", theirs[GRANT], fresh=True)["reason"] == "deleted"


def test_a_query_that_is_too_long_to_be_kept(ada: Person, article: Article) -> None:
    """Without it the view finds nothing: that is no deletion."""
    path = f"/query/?id={article.pk}&filter={'x' * 20_000}"
    fields = ada.open(path)
    assert len(fields[GRANT]) < 5_000
    assert is_unknown(ada.ask("claim", fields[GRANT]))
    assert ada.save(path, fields).status_code == 302


def test_a_view_that_locks_rows(ada: Person, article: Article, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["postgres"], "ATOMIC_REQUESTS", True)
    path = f"/locking/{article.pk}/"
    assert ada.save(path, ada.hold(path)).status_code == 302


@pytest.mark.parametrize("inline", [("articles.gone", "article"), ("articles.source", "gone")])
def test_a_form_that_is_older_than_the_code(ada: Person, article: Article, inline: tuple[str, str]) -> None:
    """Its inline was removed or renamed with a deployment."""
    path = f"/edit/{article.pk}/"
    known = read_grant(ada.open(path)[GRANT], None)
    old = sign(replace(known, inlines=(Inline(model=inline[0], fk=inline[1]),)))
    assert ada.ask("claim", old)["state"] == "error"
    refused(ada.save(path, {GRANT: old}, body="What was typed"), "What was typed")
