"""What a suite that was written for a plain admin does passes with the mixin on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group
from django.urls import reverse

from django_distlock.editing import EditLockAdmin
from testproject.articles.models import Article, Source
from tests.editing import site as views

if TYPE_CHECKING:
    from tests.editing.people import Person


class SourceInline(admin.TabularInline):  # type: ignore[type-arg]
    model = Source
    extra = 0


class LockedAdmin(EditLockAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("title", "section")
    list_editable = ("section",)
    list_filter = ("section",)
    search_fields = ("title",)
    inlines = (SourceInline,)
    save_as = True
    actions = ("publish",)

    @admin.action(description="Publish")
    def publish(self, request: Any, queryset: Any) -> None:
        self.message_user(request, f"{queryset.update(published=True)} published")


urlpatterns = [views.admin_site("locked", (Article, LockedAdmin), (Group, admin.ModelAdmin))]
SENT = {
    "title": "Changed",
    "body": "...",
    "section": "news",
    "sources-TOTAL_FORMS": "1",
    "sources-INITIAL_FORMS": "0",
    "sources-0-name": "The mayor",
}
pytestmark = pytest.mark.usefixtures("site")


def url(page: str, *args: Any) -> str:
    return reverse(f"locked:articles_article_{page}", args=args)


def test_add_change_and_save_as_new(boss: Person, article: Article) -> None:
    assert url("edit_beat") == "/locked/articles/article/distlock-editing/beat/"
    assert b"distlock_edit" not in boss.client.get(url("add")).content
    assert boss.client.post(url("add"), SENT).status_code == 302
    Article.objects.exclude(pk=article.pk).delete()
    LogEntry.objects.all().delete()
    done = boss.client.post(url("change", article.pk), SENT)
    assert done["Location"] == url("changelist")
    assert Article.objects.get().title == "Changed"
    assert LogEntry.objects.get().get_change_message() == "Changed Title and Body. Added source “The mayor”."
    assert boss.client.post(url("change", article.pk), {**SENT, "_saveasnew": "1"}).status_code == 302
    assert Article.objects.count() == 2
    for page in ("change", "delete"):
        for method in (boss.client.get, boss.client.post):
            assert method(url(page, 0)).status_code == 302


def test_lists_actions_and_deletions(boss: Person, article: Article) -> None:
    page = boss.client.get(url("changelist"), {"q": "bridge", "section": "news"})
    assert b"A bridge opens" in page.content
    data = {"form-TOTAL_FORMS": "1", "form-INITIAL_FORMS": "1", "_save": "Save"}
    data |= {"form-0-id": str(article.pk), "form-0-section": "sport"}
    done = boss.client.post(url("changelist"), data, follow=True)
    assert b"1 article was changed successfully." in done.content
    assert Article.objects.get().section == "sport"
    chosen = {"_selected_action": [article.pk], "action": "publish"}
    assert b"1 published" in boss.client.post(url("changelist"), chosen, follow=True).content
    chosen["action"] = "delete_selected"
    assert b"Are you sure" in boss.client.post(url("changelist"), chosen).content
    assert b"Are you sure" in boss.client.get(url("delete", article.pk)).content
    assert boss.client.post(url("changelist"), {**chosen, "post": "yes"}).status_code == 302
    assert not Article.objects.exists()


def test_a_model_without_the_mixin(boss: Person) -> None:
    group = Group.objects.create(name="Editors")
    address = reverse("locked:auth_group_change", args=[group.pk])
    assert b"distlock" not in boss.client.get(address).content
    assert boss.client.post(address, {"name": "Authors"}).status_code == 302
    group.delete()
