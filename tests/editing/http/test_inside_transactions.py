"""Saves inside transactions of other code, as django-reversion's, and many-to-many rows that change meanwhile."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.db import connection
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from rest_framework.test import force_authenticate

from django_distlock import advisory_lock
from django_distlock.editing import edit_locked
from django_distlock.idempotency import idempotent
from testproject.articles.models import Article
from tests.editing import site
from tests.editing.people import GRANT, LEASE, Person, body, hidden, refused, sent

if TYPE_CHECKING:
    from collections.abc import Iterator

REVERT = "/versioned/articles/article/{}/history/1/"


def test_a_revert_restores_what_is_not_in_the_form_and_open_forms_see_it(
    ada: Person, bo: Person, article: Article
) -> None:
    form, path = f"/edit/{article.pk}/", REVERT.format(article.pk)
    fields = bo.open(form)
    assert "An old text." in ada.client.get(path).content.decode()
    client = Client(enforce_csrf_checks=True)
    client.force_login(ada.user)
    assert client.post(path, sent(body="By a stranger.")).status_code == 403
    assert (body(), Article.objects.get().section) == ("On Saturday.", "news")
    assert ada.save(path).status_code == 302
    assert Article.objects.get().section == "culture"
    refused(bo.save(form, fields))
    Article.objects.all().delete()
    path = f"/versioned/articles/article/recover/{article.pk}/"
    assert GRANT not in ada.open(path), "a beat would say that it was deleted"
    assert ada.save(path, {}, body="Back again.").status_code == 302
    assert body() == "Back again."


def test_the_page_of_a_version_names_no_lease_that_is_rolled_back(
    ada: Person, article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.Versioned, "edit_lock", {"WHEN": "open"}, raising=False)
    fields = ada.open(REVERT.format(article.pk))
    assert not fields[LEASE]
    assert ada.save(REVERT.format(article.pk), fields).status_code == 302


@pytest.mark.parametrize("name", ["versioned", "outside"])
@pytest.mark.parametrize("atomic_requests", [True], indirect=True)
def test_an_editable_list_and_a_deletion(ada: Person, article: Article, name: str, atomic_requests: None) -> None:
    path = f"/{name}/articles/article/"
    form = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": article.pk, "form-0-section": "sport"}
    assert ada.client.post(path, {**form, **ada.open(path), "_save": "Save"}).status_code == 302
    assert Article.objects.get().section == "sport"
    path = f"{path}{article.pk}/delete/"
    assert ada.client.post(path, {**ada.open(path), "post": "yes"}).status_code == 302
    assert not Article.objects.exists()


# many-to-many rows that are changed while a page is being made: only the counter of saves shows them

SELECTED = re.compile(r'<option value="(\d+)"[^>]* selected')


@pytest.fixture
def group(crew: None) -> Iterator[Group]:
    site.MEANWHILE.clear()
    yield Group.objects.create(name="Editors")
    Group.objects.all().delete()


def rights(group: Group) -> set[int]:
    return set(group.permissions.values_list("pk", flat=True))


def gives(person: Person, group: Group, *pks: int) -> None:
    """Give the group these permissions, and no others, in a form."""
    path = f"/group-function/{group.pk}/"
    data = {"name": "Editors", "permissions": pks, **person.open(path)}
    assert person.client.post(path, data).status_code == 302


@pytest.mark.parametrize("page", ["group-function/{}", "group-async/{}", "group/{}", "groups/auth/group/{}/change"])
def test_a_form_that_read_them_before_a_save_is_refused(boss: Person, bo: Person, group: Group, page: str) -> None:
    """Or it shows what was saved; either way that save is not lost."""
    path = f"/{page.format(group.pk)}/"
    mine, theirs = Permission.objects.order_by("pk").values_list("pk", flat=True)[:2]
    site.MEANWHILE.append(lambda: gives(bo, group, theirs))
    response = boss.client.get(path)
    assert not site.MEANWHILE
    shown = {int(pk) for pk in SELECTED.findall(response.content.decode())}
    done = boss.client.post(path, {"name": "Editors", "permissions": [mine, *shown], **hidden(response)})
    assert done.status_code == (302 if theirs in shown else 409)
    assert theirs in rights(group)


def test_an_answer_that_read_them_before_a_write_has_the_old_version(boss: Person, bo: Person, group: Group) -> None:
    path = f"/group-api/{group.pk}/"
    mine, first, theirs = Permission.objects.order_by("pk").values_list("pk", flat=True)[:3]
    gives(bo, group, first)
    site.MEANWHILE.append(lambda: gives(bo, group, first, theirs))
    read = boss.client.get(path)
    assert not site.MEANWHILE
    shown = set(read.json()["permissions"])
    data = {"name": "Editors", "permissions": [mine, *shown]}
    done = boss.client.put(path, data, content_type="application/json", headers={"If-Match": read["ETag"]})
    assert done.status_code == (200 if theirs in shown else 412)
    assert theirs in rights(group)


def test_a_write_reads_them_again_under_the_lock(boss: Person, bo: Person, group: Group) -> None:
    """A write without If-Match, whose handler adds to what the object has."""
    mine, theirs = Permission.objects.order_by("pk")[:2]

    class Adding(site.GroupApi):
        def perform_update(self, serializer: Any) -> None:
            serializer.save(permissions=[*self.get_object().permissions.all(), mine])

    site.MEANWHILE.append(lambda: gives(bo, group, theirs.pk))
    request = RequestFactory().put("/", {"name": "Editors", "permissions": []}, content_type="application/json")
    force_authenticate(request, boss.user)
    assert Adding.as_view({"put": "update"})(request, pk=group.pk).status_code == 200
    assert rights(group) == {mine.pk, theirs.pk}


@pytest.mark.parametrize("decorate", [advisory_lock("editing", using="leasetable"), idempotent])
@pytest.mark.parametrize("atomic_requests", [True], indirect=True)
def test_a_decorator_above_opens_no_transaction_around_the_save(
    ada: Person, article: Article, settings: Any, decorate: Any, atomic_requests: None
) -> None:
    """Inside one MySQL would refuse the save at REPEATABLE READ, and it would not be tried again."""
    depths, statuses = [], [302, 503]

    @decorate
    @edit_locked(Article)
    def edit(request: Any, pk: int) -> HttpResponse:
        depths.append(len(connection.savepoint_ids))
        status = statuses.pop(0)
        Article.objects.filter(pk=pk).update(body=f"With {status}.")
        return HttpResponse(status=status, headers={"Location": "/"})

    settings.ROOT_URLCONF = (path("edit/<int:pk>/", edit),)
    headers = {"Idempotency-Key": "a"}
    assert ada.client.post(f"/edit/{article.pk}/", headers=headers).status_code == 302
    if decorate is idempotent:
        headers = {"Idempotency-Key": "b"}
        assert ada.client.post(f"/edit/{article.pk}/", headers=headers).status_code == 503
    assert body() == "With 302.", "the key of the other one is free: it is rolled back"
    assert not any(depths)
