"""View sets of the REST framework: 423, ETag, If-Match, 412."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.test import Client

from testproject.articles.models import Article
from tests.editing.people import row

if TYPE_CHECKING:
    from typing import Any

    from tests.editing.people import Person

pytestmark = pytest.mark.usefixtures("site")


def patch(person: Person, article: Article, path: str = "api", **headers: str) -> Any:
    data = {"body": "By the API."}
    return person.client.patch(f"/{path}/{article.pk}/", data, content_type="application/json", headers=headers)


def tag(person: Person, article: Article) -> str:
    found: str = person.client.get(f"/api/{article.pk}/")["ETag"]
    return found


@pytest.mark.usefixtures("atomic_requests")
def test_a_write_and_its_tag(ada: Person, bo: Person, article: Article) -> None:
    fields = bo.open(f"/edit/{article.pk}/")
    before = tag(ada, article)
    assert before.startswith('"')
    done = patch(ada, article, **{"If-Match": before})
    assert done.status_code == 200
    assert done["ETag"] == tag(ada, article) != before
    assert row(article).changed_by == "Ada"
    assert bo.client.post(f"/edit/{article.pk}/", {"title": "x", "body": "y", **fields}).status_code == 409


def test_another_version_is_412(ada: Person, article: Article) -> None:
    for given in ('"old"', "W/{}", '"a", "b"', "nonsense", "W/*", '"old", *'):
        refused = patch(ada, article, **{"If-Match": given.format(tag(ada, article))})
        assert (refused.status_code, refused.json()["code"]) == (412, "changed"), given
    assert Article.objects.get().body == "On Saturday."
    for given in ("*", '"old", {}'):
        assert patch(ada, article, **{"If-Match": given.format(tag(ada, article))}).status_code == 200, given


def test_held_is_423(ada: Person, bo: Person, article: Article) -> None:
    ada.claim(ada.open(f"/edit/{article.pk}/")["distlock_edit"])
    data = {"title": "x", "body": "y", "section": "news"}
    for send in (bo.client.patch, bo.client.put, bo.client.delete):
        refused = send(f"/api/{article.pk}/", data, content_type="application/json")
        assert refused.status_code == 423
        assert refused["Content-Type"] == "application/problem+json"
        assert (refused.json()["code"], refused.json()["holder"]) == ("held", "Ada")
    assert Article.objects.get().body == "On Saturday."
    assert patch(ada, article).status_code == 200
    made = bo.client.post("/api/", data, content_type="application/json")
    assert made.status_code == 201
    assert "ETag" not in made


def test_a_deletion(ada: Person, article: Article) -> None:
    assert ada.client.delete(f"/api/{article.pk}/", headers={"If-Match": '"old"'}).status_code == 412
    assert ada.client.delete(f"/api/{article.pk}/", headers={"If-Match": tag(ada, article)}).status_code == 204
    assert ada.client.get(f"/api/{article.pk}/").status_code == 404
    assert patch(ada, article).status_code == 404


def test_a_save_that_changes_no_column_is_another_version(ada: Person, bo: Person, article: Article) -> None:
    """Many-to-many fields and files are seen through the counter of saves alone."""
    before = tag(ada, article)
    same = {"title": article.title, "body": article.body}
    assert bo.client.post(f"/edit/{article.pk}/", {**same, **bo.open(f"/edit/{article.pk}/")}).status_code == 302
    assert patch(ada, article, **{"If-Match": before}).status_code == 412
    assert patch(ada, article, **{"If-Match": tag(ada, article)}).status_code == 200


def test_the_mode_off_has_no_version(ada: Person, article: Article, settings: Any) -> None:
    settings.DISTLOCK_EDITING = {"MODE": "off"}
    assert "ETag" not in ada.client.get(f"/api/{article.pk}/")
    assert patch(ada, article, **{"If-Match": '"old"'}).status_code == 200
    assert row(article) is None


def test_if_match_may_be_required(ada: Person, article: Article) -> None:
    assert patch(ada, article, "strict").status_code == 428
    assert patch(ada, article, "strict", **{"If-Match": tag(ada, article)}).status_code == 200


def test_strangers_learn_nothing(ada: Person, article: Article) -> None:
    """Neither that an object exists nor who edits it."""
    ada.claim(ada.open(f"/edit/{article.pk}/")["distlock_edit"])
    for send in (Client().patch, Client().put, Client().delete):
        known, unknown = (send(f"/api/{pk}/", {}, content_type="application/json") for pk in (article.pk, 0))
        assert (known.status_code, known.content) == (unknown.status_code, unknown.content)
        assert known.status_code in (401, 403)
    assert Article.objects.get().body == "On Saturday."
