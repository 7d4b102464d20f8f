"""The database gives up because of other transactions: once more, then a page; never an error, no message twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.messages import get_messages
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError

from testproject.articles.models import Article
from tests.editing import site

if TYPE_CHECKING:
    from tests.editing.people import Person

pytestmark = pytest.mark.usefixtures("site", "atomic_requests")


def failure() -> OperationalError:
    return OperationalError("database is locked")


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
def test_once_more_then_a_page(ada: Person, article: Article, failing: list[int], kind: str) -> None:
    path = f"/{kind}/{article.pk}/"
    fields = sent(ada, path)
    failing.extend([1, 1])
    refused = ada.client.post(path, fields)
    assert refused.status_code == 409
    for text in ("Others are saving this at the same moment.", "Try again", "By Ada."):
        assert text in refused.content.decode()
    assert Article.objects.get().body == "On Saturday."
    failing.append(1)
    done = ada.client.post(path, fields)
    assert done.status_code == 302
    assert Article.objects.get().body == "By Ada."
    if kind == "cheerful":
        assert [str(message) for message in get_messages(done.wsgi_request)] == ["Saved."]


def test_no_message_of_a_save_that_was_rolled_back(
    ada: Person, article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database may give up at the COMMIT, when the view has said "Saved."."""
    form_valid = site.Cheerful.form_valid

    def fail_late(view: Any, form: Any) -> Any:
        form_valid(view, form)
        raise failure()

    monkeypatch.setattr(site.Cheerful, "form_valid", fail_late)
    path = f"/cheerful/{article.pk}/"
    refused = ada.client.post(path, sent(ada, path))
    assert refused.status_code == 409
    assert not list(get_messages(refused.wsgi_request))


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
