"""Views of every kind under edit locks, for tests; also served by real servers."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.messages.views import SuccessMessageMixin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import include, path
from django.views.generic import DeleteView, FormView, UpdateView, View
from django.views.generic.detail import SingleObjectMixin
from django.views.generic.edit import DeletionMixin
from rest_framework import permissions, serializers, viewsets
from rest_framework.authentication import SessionAuthentication

from django_distlock.editing import EditLockMixin, EditLockViewSetMixin, edit_locked
from testproject.articles.models import Article


class ArticleForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Article
        fields = ("title", "body")


class Edit(EditLockMixin, UpdateView):  # type: ignore[type-arg]
    model = Article
    form_class = ArticleForm
    template_name = "editing_site/form.html"
    success_url = "/done/"


class Careless(Edit):
    """A view whose author has not read the docs: it keeps an old copy of the object, and saves all of it."""

    def get_object(self, queryset: Any = None) -> Any:
        if not hasattr(self, "_kept"):
            self._kept = super().get_object(queryset)
        return self._kept

    def form_valid(self, form: Any) -> HttpResponse:
        form.save()
        return HttpResponseRedirect("/done/")


class Cheerful(SuccessMessageMixin, Edit):  # type: ignore[misc]
    success_message = "Saved."


def answering(*args: Any, **kwargs: Any) -> Any:
    """A view that answers so after a save, for a script."""

    class Answering(Edit):
        def form_valid(self, form: Any) -> HttpResponse:
            super().form_valid(form)
            return HttpResponse(*args, **kwargs)

    return Answering.as_view()


class Delete(EditLockMixin, DeleteView):  # type: ignore[type-arg]
    model = Article
    template_name = "editing_site/form.html"
    success_url = "/done/"


class DeleteAtOnce(EditLockMixin, DeletionMixin, SingleObjectMixin, View):  # type: ignore[type-arg]
    """POST calls delete()."""

    model = Article
    success_url = "/done/"


class SecretForm(forms.Form):
    title = forms.CharField()
    password = forms.CharField(required=False, widget=forms.PasswordInput)
    picture = forms.FileField(required=False)
    day = forms.DateField(required=False)


class Publish(EditLockMixin, SingleObjectMixin, FormView):  # type: ignore[type-arg]
    """A form of no model, with an object."""

    model = Article
    form_class = SecretForm
    template_name = "editing_site/form.html"
    success_url = "/done/"
    initial: ClassVar = {"title": "as before"}

    def form_valid(self, form: Any) -> HttpResponse:
        Article.objects.filter(pk=self.object.pk).update(title=form.cleaned_data["title"])
        return super().form_valid(form)


def act(request: HttpRequest, pk: int) -> HttpResponse:
    article = get_object_or_404(Article, pk=pk)
    form = ArticleForm(request.POST or None, instance=article)
    if request.method == "POST" and form.is_valid():
        form.save()
        return HttpResponseRedirect("/done/")
    return render(request, "editing_site/form.html", {"form": form, "object": article})


def locked(**options: Any) -> Any:
    """A function view with the options of ``@edit_locked``."""
    return edit_locked(Article, **options)(act)


def admin_site(name: str, *admins: tuple[Any, Any]) -> Any:
    """The addresses of an admin with these models."""
    made = admin.AdminSite(name)
    for model, of_model in admins:
        made.register(model, of_model)
    return path(f"{name}/", made.urls)


@edit_locked(Article)
def counted(request: HttpRequest, pk: int) -> HttpResponse:
    act(request, pk)
    request.edit_lock.object.refresh_from_db()  # type: ignore[attr-defined]
    request.edit_lock.wrote()  # type: ignore[attr-defined]
    return HttpResponse("Saved.")


@edit_locked(Article, permission="articles.change_article", mode="enforce")
async def coroutine(request: HttpRequest, pk: int) -> HttpResponse:
    await request.auser()
    if request.method != "POST":
        return HttpResponse("read")
    article = await Article.objects.aget(pk=pk)
    article.body = request.POST["body"]
    await article.asave()
    if request.POST.get("break"):
        raise ValueError("broken")
    return HttpResponseRedirect("/done/")


class ArticleSerializer(serializers.ModelSerializer):  # type: ignore[misc]
    class Meta:
        model = Article
        fields = ("id", "title", "body", "section")


class ArticleViewSet(EditLockViewSetMixin, viewsets.ModelViewSet):  # type: ignore[misc]
    queryset = Article.objects.all()
    serializer_class = ArticleSerializer
    authentication_classes = (SessionAuthentication,)
    permission_classes = (permissions.IsAuthenticated,)


class StrictViewSet(ArticleViewSet):
    edit_if_match_required = True


def own_answer(request: HttpRequest, refusal: Any, pk: int) -> HttpResponse:
    return HttpResponse(refusal.text, status=418)


one: dict[str, Any] = {"get": "retrieve", "put": "update", "patch": "partial_update", "delete": "destroy"}
beats = path("distlock/editing/", include("django_distlock.editing.urls"))
urlpatterns = [
    beats,
    path("admin/", admin.site.urls),
    path("edit/<int:pk>/", Edit.as_view()),
    path("careless/<int:pk>/", Careless.as_view()),
    path("cheerful/<int:pk>/", Cheerful.as_view()),
    path("quiet/<int:pk>/", answering(b"Saved.")),
    path("counted/<int:pk>/", counted),
    path("delete/<int:pk>/", Delete.as_view()),
    path("at-once/<int:pk>/", DeleteAtOnce.as_view()),
    path("publish/<int:pk>/", Publish.as_view()),
    path("function/<int:pk>/", locked()),
    path("own/<int:pk>/", locked(on_conflict=own_answer)),
    path("async/<int:pk>/", coroutine),
    path("api/<int:pk>/", ArticleViewSet.as_view(one)),
    path("api/", ArticleViewSet.as_view({"get": "list", "post": "create"})),
    path("strict/<int:pk>/", StrictViewSet.as_view(one)),
]
