"""Articles that two people edit: the list with who is editing what, and the form in three ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.auth import login
from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import Http404, HttpResponseRedirect
from django.urls import reverse, reverse_lazy
from django.views.decorators.http import require_POST
from django.views.generic import ListView, UpdateView

from django_distlock.editing import EditLockMixin, editors

from .models import Article
from .people import PEOPLE, person

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


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


@require_POST
def become(request: HttpRequest, slug: str) -> HttpResponse:
    if slug not in PEOPLE:
        raise Http404(f"There is nobody called {slug!r}.")
    login(request, person(slug), backend="django.contrib.auth.backends.ModelBackend")
    return HttpResponseRedirect(reverse("articles"))
