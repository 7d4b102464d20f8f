"""View sets of the REST framework: 423, ETag, If-Match, 412."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from testproject.articles.models import Article
from tests.editing.people import row

if TYPE_CHECKING:
    from typing import Any

    from tests.editing.people import Person

pytestmark = pytest.mark.usefixtures("site", "atomic_requests")


def patch(person: Person, article: Article, path: str = "api", **headers: str) -> Any:
    data = {"body": "By the API."}
    return person.client.patch(f"/{path}/{article.pk}/", data, content_type="application/json", headers=headers)


def tag(person: Person, article: Article) -> str:
    found: str = person.client.get(f"/api/{article.pk}/")["ETag"]
    return found


def test_a_write_and_its_tag(ada: Person, article: Article) -> None:
    before = tag(ada, article)
    assert before.startswith('"')
    done = patch(ada, article, **{"If-Match": before})
    assert done.status_code == 200
    assert done["ETag"] == tag(ada, article) != before
    found = row(article)
    assert found is not None
    assert found.changed_by == "Ada"


@pytest.mark.parametrize("given", ['"old"', "W/{}", '"a", "b"', "nonsense"])
def test_another_version_is_412(ada: Person, article: Article, given: str) -> None:
    refused = patch(ada, article, **{"If-Match": given.format(tag(ada, article))})
    assert (refused.status_code, refused.json()["code"]) == (412, "changed")
    assert Article.objects.get().body == "On Saturday."


@pytest.mark.parametrize("given", ["*", '"old", {}'])
def test_one_of_several(ada: Person, article: Article, given: str) -> None:
    assert patch(ada, article, **{"If-Match": given.format(tag(ada, article))}).status_code == 200


def test_a_form_sees_the_write(ada: Person, bo: Person, article: Article) -> None:
    fields = bo.open(f"/edit/{article.pk}/")
    assert patch(ada, article).status_code == 200
    sent = {"title": "x", "body": "y", **fields}
    assert bo.client.post(f"/edit/{article.pk}/", sent).status_code == 409


@pytest.mark.parametrize("method", ["patch", "put", "delete"])
def test_held_is_423(ada: Person, bo: Person, article: Article, method: str) -> None:
    ada.claim(ada.open(f"/edit/{article.pk}/")["distlock_edit"])
    data = {"title": "x", "body": "y", "section": "news"}
    refused = getattr(bo.client, method)(f"/api/{article.pk}/", data, content_type="application/json")
    assert refused.status_code == 423
    assert refused["Content-Type"] == "application/problem+json"
    assert (refused.json()["code"], refused.json()["holder"]) == ("held", "Ada")
    assert Article.objects.get().body == "On Saturday."
    assert patch(ada, article).status_code == 200


def test_a_deletion(ada: Person, article: Article) -> None:
    assert ada.client.delete(f"/api/{article.pk}/", headers={"If-Match": '"old"'}).status_code == 412
    assert ada.client.delete(f"/api/{article.pk}/", headers={"If-Match": tag(ada, article)}).status_code == 204
    assert ada.client.get(f"/api/{article.pk}/").status_code == 404
    assert patch(ada, article).status_code == 404


def test_an_invalid_write_changes_nothing(ada: Person, bo: Person, article: Article) -> None:
    fields = bo.open(f"/edit/{article.pk}/")
    wrong = ada.client.patch(f"/api/{article.pk}/", {"section": "none"}, content_type="application/json")
    assert wrong.status_code == 400
    assert bo.client.post(f"/edit/{article.pk}/", {"title": "x", "body": "y", **fields}).status_code == 302


def test_if_match_may_be_required(ada: Person, article: Article) -> None:
    assert patch(ada, article, "strict").status_code == 428
    assert patch(ada, article, "strict", **{"If-Match": tag(ada, article)}).status_code == 200


def test_the_list_and_a_new_object(ada: Person, article: Article) -> None:
    assert len(ada.client.get("/api/").json()) == 1
    made = ada.client.post("/api/", {"title": "x", "body": "y", "section": "news"}, content_type="application/json")
    assert made.status_code == 201
    assert "ETag" not in made


def test_strangers_learn_nothing(article: Article) -> None:
    from django.test import Client

    answers = {Client().patch(f"/api/{pk}/", {}, content_type="application/json").content for pk in (article.pk, 0)}
    assert len(answers) == 1
