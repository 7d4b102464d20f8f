"""The database gives up because of other transactions: once more, then a page; never an error, no message twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.messages import get_messages
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError, connection

from testproject.articles.models import Article
from tests.editing import site

if TYPE_CHECKING:
    from tests.editing.people import Person

pytestmark = pytest.mark.usefixtures("site", "atomic_requests")


def failure() -> OperationalError:
    """As this database says it."""
    if connection.vendor == "sqlite":
        return OperationalError("database is locked")
    error = OperationalError(1213, "Deadlock found")
    cause = Exception("could not serialize access")
    cause.sqlstate = "40001"  # type: ignore[attr-defined]
    error.__cause__ = cause
    return error


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the next saves of the form fail after they have written."""
    left: list[int] = []
    save = site.ArticleForm.save

    def failing_save(form: Any, commit: bool = True) -> Any:
        found = save(form, commit)
        if left:
            left.pop()
            raise failure()
        return found

    monkeypatch.setattr(site.ArticleForm, "save", failing_save)
    return left


def sent(person: Person, path: str, **more: Any) -> dict[str, Any]:
    return {"title": "A bridge opens", "body": "By Ada.", **person.open(path), **more}


@pytest.mark.parametrize("kind", ["cheerful", "function"])
def test_once_more(ada: Person, article: Article, failing: list[int], kind: str) -> None:
    path = f"/{kind}/{article.pk}/"
    failing.append(1)
    done = ada.client.post(path, sent(ada, path))
    assert done.status_code == 302
    assert Article.objects.get().body == "By Ada."
    if kind == "cheerful":
        assert [str(message) for message in get_messages(done.wsgi_request)] == ["Saved."]


@pytest.mark.parametrize("kind", ["cheerful", "function"])
def test_then_a_page(ada: Person, article: Article, failing: list[int], kind: str) -> None:
    path = f"/{kind}/{article.pk}/"
    fields = sent(ada, path)
    failing.extend([1, 1])
    refused = ada.client.post(path, fields)
    assert refused.status_code == 409
    text = refused.content.decode()
    assert "Others are saving this at the same moment." in text
    assert "Try again" in text
    assert "By Ada." in text
    assert Article.objects.get().body == "On Saturday."
    assert ada.client.post(path, fields).status_code == 302


def test_a_file_is_not_saved_twice(ada: Person, article: Article, failing: list[int]) -> None:
    path = f"/cheerful/{article.pk}/"
    failing.append(1)
    refused = ada.client.post(path, sent(ada, path, picture=SimpleUploadedFile("cat.png", b"cat")))
    assert refused.status_code == 409
    assert Article.objects.get().body == "On Saturday."


def test_programs_get_423(ada: Person, article: Article, monkeypatch: pytest.MonkeyPatch) -> None:
    def update(serializer: Any, instance: Any, data: Any) -> Any:
        raise failure()

    monkeypatch.setattr(site.ArticleSerializer, "update", update)
    refused = ada.client.patch(f"/api/{article.pk}/", {"body": "x"}, content_type="application/json")
    assert (refused.status_code, refused.json()["code"]) == (423, "saving")


def test_other_errors_stay_errors(ada: Person, article: Article, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(form: Any, commit: bool = True) -> Any:
        raise OperationalError("the disk is full")

    monkeypatch.setattr(site.ArticleForm, "save", save)
    path = f"/edit/{article.pk}/"
    with pytest.raises(OperationalError, match="disk"):
        ada.client.post(path, sent(ada, path))
