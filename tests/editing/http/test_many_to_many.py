"""Changes of many-to-many rows while a page is being made: only the counter of saves shows them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django import forms
from django.contrib import admin
from django.contrib.auth.models import Group, Permission
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.test import RequestFactory
from django.urls import path
from django.views.generic import UpdateView
from rest_framework import permissions, serializers, viewsets
from rest_framework.authentication import SessionAuthentication
from rest_framework.test import force_authenticate

from django_distlock.editing import EditLockAdmin, EditLockMixin, EditLockViewSetMixin, edit_locked
from tests.editing import site as views
from tests.editing.people import Person, hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What happens once, after a page has read its object and before the page is complete.
MEANWHILE: list[Callable[[], object]] = []


SELECTED = re.compile(r'<option value="(\d+)"[^>]* selected')


def meanwhile() -> None:
    if MEANWHILE:
        MEANWHILE.pop()()


class GroupForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Group
        fields = ("name", "permissions")


def act(request: HttpRequest, pk: int) -> HttpResponse:
    group = get_object_or_404(Group, pk=pk)
    form = GroupForm(request.POST or None, instance=group)  # reads the many-to-many rows
    if request.method == "POST" and form.is_valid():
        form.save()
        return HttpResponseRedirect("/done/")
    meanwhile()
    return render(request, "editing_site/form.html", {"form": form, "object": group})


@edit_locked(Group)
async def coroutine(request: HttpRequest, pk: int) -> HttpResponse:
    return await sync_to_async(act)(request, pk)


class Loading:
    """Loads the many-to-many rows along with the object."""

    def get_object(self, *args: Any, **kwargs: Any) -> Any:
        found = super().get_object(*args, **kwargs)  # type: ignore[misc]
        meanwhile()
        return found


class Edit(EditLockMixin, Loading, UpdateView):  # type: ignore[type-arg]
    queryset = Group.objects.prefetch_related("permissions")
    form_class = GroupForm
    template_name = "editing_site/form.html"
    success_url = "/done/"


class GroupSerializer(serializers.ModelSerializer):  # type: ignore[misc]
    class Meta:
        model = Group
        fields = ("name", "permissions")


class GroupViewSet(EditLockViewSetMixin, Loading, viewsets.ModelViewSet):  # type: ignore[misc]
    queryset = Group.objects.prefetch_related("permissions")
    serializer_class = GroupSerializer
    authentication_classes = (SessionAuthentication,)
    permission_classes = (permissions.IsAuthenticated,)


class GroupAdmin(EditLockAdmin, Loading, admin.ModelAdmin):  # type: ignore[type-arg]
    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related("permissions")


urlpatterns = [
    path("function/<int:pk>/", edit_locked(Group)(act)),
    path("async/<int:pk>/", coroutine),
    path("class/<int:pk>/", Edit.as_view()),
    path("api/<int:pk>/", GroupViewSet.as_view({"get": "retrieve", "put": "update"})),
    views.admin_site("groups", (Group, GroupAdmin)),
]


@pytest.fixture
def group(site: None) -> Iterator[Group]:
    MEANWHILE.clear()
    yield Group.objects.create(name="Editors")
    Group.objects.all().delete()


def rights(group: Group) -> set[int]:
    return set(group.permissions.values_list("pk", flat=True))


def save(person: Person, address: str, *pks: int, **fields: str) -> HttpResponse:
    return person.client.post(address, {"name": "Editors", "permissions": pks, **fields})  # type: ignore[return-value]


def adds(person: Person, group: Group, *pks: int) -> None:
    """Give the group these permissions, and others none, in a form."""
    address = f"/function/{group.pk}/"
    assert save(person, address, *pks, **person.open(address)).status_code == 302


@pytest.mark.parametrize("page", ["function/{}/", "async/{}/", "class/{}/", "groups/auth/group/{}/change/"])
def test_a_form_that_read_them_before_a_save_is_refused(boss: Person, bo: Person, group: Group, page: str) -> None:
    """Or it shows what was saved; either way that save is not lost."""
    address = f"/{page.format(group.pk)}"
    mine, theirs = Permission.objects.order_by("pk")[:2]
    MEANWHILE.append(lambda: adds(bo, group, theirs.pk))
    response = boss.client.get(address)
    assert not MEANWHILE
    shown = {int(pk) for pk in SELECTED.findall(response.content.decode())}
    done = save(boss, address, mine.pk, *shown, **hidden(response))
    assert done.status_code == (302 if theirs.pk in shown else 409)
    assert theirs.pk in rights(group)


def test_an_answer_that_read_them_before_a_write_has_the_old_version(boss: Person, bo: Person, group: Group) -> None:
    address = f"/api/{group.pk}/"
    mine, first, theirs = Permission.objects.order_by("pk")[:3]
    adds(bo, group, first.pk)
    MEANWHILE.append(lambda: adds(bo, group, first.pk, theirs.pk))
    read = boss.client.get(address)
    assert not MEANWHILE
    shown = set(read.json()["permissions"])
    data = {"name": "Editors", "permissions": [mine.pk, *shown]}
    done = boss.client.put(address, data, content_type="application/json", headers={"If-Match": read["ETag"]})
    assert done.status_code == (200 if theirs.pk in shown else 412)
    assert theirs.pk in rights(group)


def test_a_write_reads_them_again_under_the_lock(boss: Person, bo: Person, group: Group) -> None:
    """A write without If-Match, whose handler adds to what the object has."""
    mine, theirs = Permission.objects.order_by("pk")[:2]

    class Adding(GroupViewSet):
        def perform_update(self, serializer: Any) -> None:
            serializer.save(permissions=[*self.get_object().permissions.all(), mine])

    request_of = Adding.as_view({"put": "update"})
    MEANWHILE.append(lambda: adds(bo, group, theirs.pk))
    request = RequestFactory().put("/", {"name": "Editors", "permissions": []}, content_type="application/json")
    force_authenticate(request, boss.user)
    assert request_of(request, pk=group.pk).status_code == 200
    assert rights(group) == {mine.pk, theirs.pk}
