"""A beat arrives at the view of its form, and so after all that the view does and asks before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connections

from django_distlock.editing.grants import read_grant, sign
from django_distlock.editing.versions import Inline
from django_distlock.http.visitors import principal_of_user
from testproject.articles.models import Article
from tests.editing import site
from tests.editing.people import GRANT, Person, refused


def meet(ada: Person, bo: Person, path: str) -> None:
    """One holds the lock, the other is told and refused."""
    theirs = bo.open(path)
    assert bo.ask("watch", theirs[GRANT], fresh=True)["state"] == "free"
    mine = ada.hold(path)
    answer = bo.ask("claim", theirs[GRANT])
    assert (answer["state"], answer["holder"]["label"]) == ("busy", "Ada")
    refused(bo.save(path, theirs))
    ada.give_back(mine)
    assert bo.ask("claim", theirs[GRANT])["state"] == "held"


def test_a_view_that_is_prepared_in_dispatch_and_named_by_its_query(ada: Person, bo: Person, article: Article) -> None:
    path = f"/query/?next=%2Fa%3Fb&id={article.pk}&q=%C3%A4+%26&filter={'x' * 5_000}"
    meet(ada, bo, path)
    grant = bo.open(path)[GRANT]
    article.delete()
    assert bo.ask("watch", grant, fresh=True)["reason"] == "deleted"


@pytest.mark.parametrize(
    ("kind", "of", "place", "error"),
    [
        ("cheerful", site.Cheerful, "get_queryset", OperationalError("x")),
        ("cheerful", site.Cheerful, "may_edit", AssertionError()),
        ("cheerful", site.Cheerful, "may_take_over", TypeError()),
        ("by-call", site.Rules, "permission", ValueError()),
    ],
)
def test_whatever_a_view_raises(
    ada: Person, bo: Person, article: Article, monkeypatch: Any, kind: str, of: type, place: str, error: Exception
) -> None:
    """It takes nothing from the holder, and tells nothing about the object."""
    path = f"/{kind}/{article.pk}/"
    mine, theirs = ada.hold(path), bo.open(path)[GRANT]
    bo.client.raise_request_exception = False

    def fail(*args: Any) -> bool:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(of, place, fail)
        for verb in ("takeover", "watch", "claim"):
            reply = bo.beat(path, {"verb": verb, "grant": theirs, "lease": "b" * 32})
            assert reply.status_code >= 500
            assert b"Ada" not in reply.content
    assert ada.renew(mine)["state"] == "held"


@pytest.mark.parametrize("kind", ["posting", "delete", "at-once", "admin"])
def test_a_beat_is_never_taken_for_a_form(ada: Person, article: Article, kind: str) -> None:
    """Not by a post() of the view's own, and not as the confirmation of a deletion."""
    path = f"/admin/articles/article/{article.pk}/delete/" if kind == "admin" else f"/{kind}/{article.pk}/"
    grant = ada.open(f"/edit/{article.pk}/")[GRANT]
    for body in ({"verb": "claim", "grant": grant, "lease": "a" * 32}, {"verb": "claim", "post": "yes"}):
        assert ada.beat(path, body).status_code in (200, 400)
    assert Article.objects.get().body == "On Saturday."


def test_a_view_that_locks_rows(ada: Person, article: Article, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["postgres"], "ATOMIC_REQUESTS", True)
    path = f"/locking/{article.pk}/"
    assert ada.save(path, ada.hold(path)).status_code == 302


@pytest.mark.parametrize("inline", [("articles.gone", "article"), ("articles.source", "gone")])
def test_a_form_that_is_older_than_the_code(ada: Person, article: Article, inline: tuple[str, str]) -> None:
    """Its inline was removed or renamed with a deployment."""
    path = f"/edit/{article.pk}/"
    known = read_grant(ada.open(path)[GRANT], f"{principal_of_user(ada.user)}@testserver")
    old = sign(replace(known, inlines=(Inline(model=inline[0], fk=inline[1]),)))
    assert ada.ask("claim", old)["state"] == "error"
    refused(ada.save(path, {GRANT: old}, body="What was typed"), "What was typed")


def test_the_tag_in_a_view_without_a_lock_is_an_error(ada: Person, article: Article) -> None:
    """Its form would look locked, and nothing would refuse a save."""
    with pytest.raises(ImproperlyConfigured, match="has no edit lock"):
        ada.client.get(f"/unlocked/{article.pk}/")
