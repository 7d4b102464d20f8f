"""A suite that was written for a plain admin passes with the mixin on, and a model without the mixin is untouched."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.test import TestCase, override_settings
from django.urls import path, reverse

from django_distlock.editing import EditLockAdmin
from testproject.articles.models import Article, Source


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


locked = admin.AdminSite("locked")
locked.register(Article, LockedAdmin)
locked.register(Group)
urlpatterns = [path("locked/", locked.urls)]
SENT = {
    "title": "Changed",
    "body": "...",
    "section": "news",
    "sources-TOTAL_FORMS": "1",
    "sources-INITIAL_FORMS": "0",
    "sources-0-name": "The mayor",
}


@override_settings(ROOT_URLCONF=__name__)
class TestLocked(TestCase):
    """Knows nothing of locks."""

    @classmethod
    def setUpTestData(cls) -> None:
        Article.objects.all().delete()  # those of the migration
        cls.boss = User.objects.create(username="boss", is_staff=True, is_superuser=True)
        cls.article = Article.objects.create(title="A bridge opens", body="On Saturday.")

    def setUp(self) -> None:
        self.client.force_login(self.boss)

    def url(self, page: str, *args: Any) -> str:
        return reverse(f"locked:articles_article_{page}", args=args)

    def test_change(self) -> None:
        assert reverse("locked:articles_article_edit_beat") == "/locked/articles/article/distlock-editing/beat/"
        done = self.client.post(self.url("change", self.article.pk), SENT)
        assert done.status_code == 302
        assert done.url == self.url("changelist")  # type: ignore[attr-defined]
        assert Article.objects.get().title == "Changed"
        assert LogEntry.objects.get().get_change_message() == "Changed Title and Body. Added source “The mayor”."

    def test_add_and_save_as_new(self) -> None:
        assert b"distlock_edit" not in self.client.get(self.url("add")).content
        assert self.client.post(self.url("add"), SENT).status_code == 302
        assert Source.objects.get().article.title == "Changed"
        copied = self.client.post(self.url("change", self.article.pk), {**SENT, "_saveasnew": "1"})
        assert copied.status_code == 302
        assert Article.objects.count() == 3

    def test_an_object_that_does_not_exist(self) -> None:
        for page in ("change", "delete"):
            for method in (self.client.get, self.client.post):
                assert method(self.url(page, 0)).status_code == 302

    def test_delete(self) -> None:
        assert b"Are you sure" in self.client.get(self.url("delete", self.article.pk)).content
        assert self.client.post(self.url("delete", self.article.pk), {"post": "yes"}).status_code == 302
        assert not Article.objects.exists()

    def test_actions(self) -> None:
        chosen = {"_selected_action": [self.article.pk], "action": "publish"}
        assert b"1 published" in self.client.post(self.url("changelist"), chosen, follow=True).content
        chosen["action"] = "delete_selected"
        assert b"Are you sure" in self.client.post(self.url("changelist"), chosen).content
        assert self.client.post(self.url("changelist"), {**chosen, "post": "yes"}).status_code == 302
        assert not Article.objects.exists()

    def test_list_editable(self) -> None:
        page = self.client.get(self.url("changelist"), {"q": "bridge", "section": "news"})
        assert b"A bridge opens" in page.content
        data = {
            "form-TOTAL_FORMS": "1",
            "form-INITIAL_FORMS": "1",
            "form-0-id": str(self.article.pk),
            "form-0-section": "sport",
            "_save": "Save",
        }
        done = self.client.post(self.url("changelist"), data, follow=True)
        assert b"1 article was changed successfully." in done.content
        assert Article.objects.get().section == "sport"

    def test_a_model_without_the_mixin(self) -> None:
        group = Group.objects.create(name="Editors")
        address = reverse("locked:auth_group_change", args=[group.pk])
        assert b"distlock" not in self.client.get(address).content
        assert self.client.post(address, {"name": "Authors"}).status_code == 302
