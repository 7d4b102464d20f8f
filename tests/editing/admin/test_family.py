"""A model that is edited on a page of its own and as an inline of its parent; objects of another database."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission

from django_distlock.editing.grants import read_grant
from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article, Source
from tests.data.app.models import Node
from tests.editing import site
from tests.editing.people import GRANT, Person, hidden, is_held, refused
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


def leases(**which: str) -> list[str]:
    return list(EditLeaseRow.rows.filter(**which).exclude(lease="").values_list("lease", flat=True))


def test_e2_a_child_that_is_edited_keeps_the_parent_from_being_saved_and_deleted(
    ada: Person, bo: Person, article: Article, source: Source, parent: str, child: str
) -> None:
    ada.open(child)
    fields = bo.open(parent)
    for verb in ("claim", "adopt"):  # all or nothing
        assert bo.ask(verb, fields[GRANT], previous="a" * 32)["state"] == "busy"
    assert leases(model="articles.article") == []
    refused(bo.save(parent, fields, source))
    assert "being_edited" not in bo.client.get("/family/articles/source/").content.decode()  # edit_lock_column
    delete = parent.replace("change", "delete")
    chosen = {"action": "delete_selected", "_selected_action": [article.pk], "post": "yes"}
    for page in (bo.client.get(delete), bo.client.post(delete, {"post": "yes"}), bo.client.post(LIST, chosen)):
        assert "source “The mayor”: Ada is editing this now." in page.content.decode()
    assert Article.objects.exists()


@pytest.mark.parametrize("place", ["parent", "child"])
def test_e18_a_parent_is_taken_over_with_its_children(
    ada: Person, bo: Person, boss: Person, source: Source, parent: str, child: str, place: str, monkeypatch: Any
) -> None:
    """Of a child that is edited on a page of its own its admin decides."""
    if place == "parent":
        ada.hold(parent)
    else:
        ada.open(child)
        with monkeypatch.context() as patch:
            patch.setattr(site.Children, "may_take_over", lambda self, request, obj: False)
            assert boss.ask("takeover", boss.open(parent)[GRANT]) == {"state": "error", "reason": "permission"}
            assert is_held(source)
    for person, answer in ((bo, "error"), (boss, "held")):
        grant = person.open(parent)[GRANT]
        asked = person.ask("claim", grant)
        assert (asked["state"], asked["can_take_over"]) == ("busy", person is boss)
        assert person.ask("takeover", grant, lease="d" * 32)["state"] == answer
    assert leases() == ["d" * 32] * 2
    assert rename(bo, source, child) == 409


def test_children_that_one_may_only_see_stay_free(
    ada: Person, bo: Person, article: Article, source: Source, parent: str, child: str
) -> None:
    bo.user.user_permissions.remove(*Permission.objects.filter(codename__in=["change_source", "delete_source"]))
    fields = bo.hold(parent)
    assert is_held(article)
    assert leases(model="articles.source") == []
    assert rename(ada, source, child) == 302
    assert bo.save(parent, fields).status_code == 302


def test_a_child_of_itself_is_locked_once(boss: Person) -> None:
    node = Node.objects.create(name="a")
    try:
        Node.objects.update(parent=node)
        grant = boss.open(f"/family/dataapp/node/{node.pk}/change/")[GRANT]
        assert len(read_grant(grant, None).resources) == 1
    finally:
        node.delete()


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
