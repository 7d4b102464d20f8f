"""A model that is edited on a page of its own and as an inline of its parent; objects of another database."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from testproject.articles.models import Article, Source
from tests.editing.people import Person, hidden, is_held, refused
from tests.editing.store.desks import emptied

LIST = "/family/articles/article/"
ELSEWHERE = "/elsewhere/articles/article/"


@pytest.fixture
def source(article: Article) -> Source:
    return Source.objects.create(article=article, name="The mayor")


@pytest.fixture
def parent(article: Article) -> str:
    return f"{LIST}{article.pk}/change/"


@pytest.fixture
def child(source: Source) -> str:
    """Opening it takes its lock."""
    return f"/family/articles/source/{source.pk}/change/"


def rename(person: Person, source: Source, child: str) -> int:
    data = {"article": source.article_id, "name": "The baker", **person.open(child)}
    return person.client.post(child, data).status_code


def test_e3_a_child_that_is_edited_keeps_the_parent_from_being_deleted(
    ada: Person, bo: Person, article: Article, source: Source, parent: str, child: str
) -> None:
    ada.open(child)
    assert "being_edited" not in bo.client.get("/family/articles/source/").content.decode()  # edit_lock_column
    delete = parent.replace("change", "delete")
    chosen = {"action": "delete_selected", "_selected_action": [article.pk], "post": "yes"}
    for page in (bo.client.get(delete), bo.client.post(delete, {"post": "yes"}), bo.client.post(LIST, chosen)):
        assert "source “The mayor”: Ada is editing this now." in page.content.decode()
    assert Article.objects.exists()


def test_a_child_that_is_edited_on_its_own_page_is_seen_by_the_save_of_its_parent(
    ada: Person, bo: Person, article: Article, source: Source, parent: str, child: str
) -> None:
    """By the version, which has the rows of inlines: the parent alone is locked."""
    ada.open(child)
    fields = bo.hold(parent)
    assert is_held(article)
    assert rename(ada, source, child) == 302
    refused(bo.save(parent, fields, source))


def test_a_child_that_a_save_of_its_parent_has_not_touched_is_as_it_was(
    ada: Person, bo: Person, article: Article, source: Source, parent: str, child: str
) -> None:
    """And a beat of the parent costs one UPDATE, whatever its inlines."""
    data = {"article": article.pk, "name": "The baker", **ada.open(child)}
    held = bo.hold(parent)
    Source.objects.bulk_create([Source(article=article, name=str(number)) for number in range(9)])
    with CaptureQueriesContext(connection) as queries:
        assert bo.renew(held)["state"] == "held"
    assert len([query for query in queries if "UPDATE" in query["sql"]]) == 1
    assert bo.save(parent, None, source, body="By Bo.").status_code == 302
    assert ada.client.post(child, data).status_code == 302


def test_objects_of_another_database(ada: Person, bo: Person, article: Article) -> None:
    """Saved in an editable list, refused actions, the filter, and the page of one."""
    for alias in emptied("postgres"):
        there = Article.objects.using(alias)
        theirs = there.create(pk=article.pk, title="There")
        page, change = ada.client.get(ELSEWHERE), f"{ELSEWHERE}{theirs.pk}/change/"
        form = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": theirs.pk, "form-0-section": "sport"}
        form |= {**hidden(page), "_save": "Save"}
        assert ada.client.post(ELSEWHERE, form).status_code == 302
        assert (there.get().section, Article.objects.get().section) == ("sport", "news")
        there.update(section="culture")
        refused(ada.client.post(ELSEWHERE, form))
        ada.hold(change)
        for action in ("publish", "delete_selected"):
            bo.client.post(ELSEWHERE, {"action": action, "_selected_action": [theirs.pk], "post": "yes"})
        assert not there.get().published, "or deleted"
        assert list(bo.client.get(ELSEWHERE, {"being_edited": "others"}).context["cl"].result_list) == [theirs]
        refused(bo.save(change))
