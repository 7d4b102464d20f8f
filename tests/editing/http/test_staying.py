"""Saves by a page that stays: it keeps its lease, and nobody gets in between before its next beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from django_distlock.editing import EditLockAdmin, edit_locked
from django_distlock.editing.listing import list_edits
from testproject.articles.models import Article
from tests.editing import site as views
from tests.editing.people import is_held

if TYPE_CHECKING:
    from tests.editing.people import Person

SCRIPT = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
BROWSER = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@edit_locked(Article)
def function(request: HttpRequest, pk: int) -> HttpResponse:
    views.act(request, pk)
    request.edit_lock.wrote()  # type: ignore[attr-defined]
    return JsonResponse({"saved": True})


class Popup(EditLockAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    fields = ("title", "body")

    def response_change(self, request: HttpRequest, obj: Any) -> HttpResponse:  # type: ignore[override]
        super().response_change(request, obj)
        return JsonResponse({"saved": True})


urlpatterns = [
    *views.urlpatterns,
    path("empty/<int:pk>/", views.answering(status=204)),
    path("download/<int:pk>/", views.answering(b"a,b", headers={"Content-Disposition": "attachment"})),
    path("answers/<int:pk>/", function),
    views.admin_site("popups", (Article, Popup)),
]


pytestmark = pytest.mark.usefixtures("site")


def left() -> float:
    """Seconds for which the one lease is still held, if no beat comes."""
    return sum(lease.expires_in for lease in list_edits("default"))


def claimed(person: Person, article: Article, address: str = "/edit/{}/") -> dict[str, str]:
    """The fields of an open form in which something was typed."""
    fields = person.open(address.format(article.pk))
    return {**fields, "distlock_edit_lease": person.claim(fields["distlock_edit"]), "distlock_edit_tab": person.tab}


def save(person: Person, address: str, fields: dict[str, str], headers: dict[str, str]) -> Any:
    return person.client.post(address, {"title": "x", "body": "y", **fields}, headers=headers)


def test_a_write_of_the_api_that_names_the_lease(ada: Person, article: Article) -> None:
    fields = claimed(ada, article)
    grant, lease = fields["distlock_edit"], fields["distlock_edit_lease"]
    data, headers = {"title": "x", "body": "y"}, {"Distlock-Lease": lease}
    for send in (ada.client.patch, ada.client.put):
        done = send(f"/api/{article.pk}/", data, content_type="application/json", headers=headers)
        assert done.status_code == 200
        assert left() > 30
        assert ada.ask("renew", grant, lease=lease)["state"] == "held"
    ada.release([grant], [lease])  # and prolongs none that was given back
    done = ada.client.patch(f"/api/{article.pk}/", data, content_type="application/json", headers=headers)
    assert done.status_code == 200
    assert not is_held(article) or left() < 10


@pytest.mark.parametrize(
    ("address", "headers"),
    [
        ("/answers/{}/", {}),
        ("/popups/articles/article/{}/change/", {}),
        ("/empty/{}/", BROWSER),  # it stays at 204
        ("/download/{}/", BROWSER),
        ("/edit/{}/", SCRIPT),  # fetch() follows the redirect
        ("/function/{}/", SCRIPT),
        ("/admin/articles/article/{}/change/", SCRIPT),
    ],
)
def test_a_form_that_stays(ada: Person, article: Article, address: str, headers: dict[str, str]) -> None:
    address = address.format(article.pk)
    fields = claimed(ada, article, address if "/admin/" in address or "/popups/" in address else "/edit/{}/")
    more = {"section": "news", "sources-TOTAL_FORMS": "0", "sources-INITIAL_FORMS": "0"} if "/admin/" in address else {}
    done = save(ada, address, {**fields, **more}, headers)
    assert done.status_code in (200, 204, 302)
    article.refresh_from_db()
    assert article.body == "y"
    assert left() > 30


@pytest.mark.parametrize(
    ("address", "headers"),
    [("/edit/{}/", BROWSER), ("/quiet/{}/", {}), ("/function/{}/", {})],
)
def test_a_page_that_goes(ada: Person, article: Article, address: str, headers: dict[str, str]) -> None:
    save(ada, address.format(article.pk), claimed(ada, article), headers)
    article.refresh_from_db()
    assert article.body == "y"
    assert left() < 10
