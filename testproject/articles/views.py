"""Articles that two people edit: the list with who is editing what, and the form in three ways."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth.mixins import LoginRequiredMixin
from django.urls import reverse_lazy
from django.views.generic import ListView, UpdateView

from django_distlock.editing import EditLockMixin, editors
from testproject.people import PEOPLE

from .models import Article


class ArticleList(ListView):  # type: ignore[type-arg]
    model = Article
    template_name = "articles/home.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        context = super().get_context_data(**context)
        editing = editors(context["object_list"])
        rows = [(article, editing.get(article.pk)) for article in context["object_list"]]
        return {**context, "rows": rows, "people": PEOPLE}


class PlainEdit(LoginRequiredMixin, UpdateView):  # type: ignore[type-arg]  # not subscriptable at run time
    """Without a lock: the second save silently destroys the first."""

    model = Article
    fields = ("title", "body", "section", "published")
    template_name = "articles/edit.html"
    success_url = reverse_lazy("articles")
    login_url = reverse_lazy("articles")
    extra_context: ClassVar = {"title": "Without a lock"}


class LockedEdit(EditLockMixin, PlainEdit):
    """One person edits at a time; others see who."""

    extra_context: ClassVar = {"title": "With an edit lock", "locked": True}
