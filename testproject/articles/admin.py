from __future__ import annotations

from django.contrib import admin

from django_distlock.editing import EditLockAdmin

from .models import Article, Source


class SourceInline(admin.TabularInline):  # type: ignore[type-arg]  # not subscriptable at run time
    model = Source
    extra = 1


@admin.register(Article)
class ArticleAdmin(EditLockAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("title", "section", "published")
    list_editable = ("published",)
    inlines = (SourceInline,)
