"""Views and admins of every kind under edit locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from asgiref.sync import sync_to_async
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.mixins import PermissionRequiredMixin
from django.contrib.auth.models import Group, User
from django.contrib.messages.views import SuccessMessageMixin
from django.db import transaction
from django.forms import inlineformset_factory
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template import Context, Template
from django.urls import path, re_path
from django.utils.decorators import method_decorator
from django.views.generic import DeleteView, FormView, UpdateView, View
from django.views.generic.detail import SingleObjectMixin
from django.views.generic.edit import DeletionMixin
from rest_framework import permissions, serializers, viewsets
from rest_framework.authentication import SessionAuthentication

from django_distlock.editing import EditLockAdmin, EditLockMixin, EditLockViewSetMixin, edit_lock, edit_locked
from testproject.articles.models import Article, Source
from testproject.urls import urlpatterns as of_the_scene

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGE = "articles.change_article"
# What happens once, after a page has read its object and before the page is complete.
MEANWHILE: list[Callable[[], object]] = []


# Of the functions with permission= and takeover=; a test puts another rule there.
class Rules:
    permission = staticmethod(lambda request, obj: request.user.has_perm(CHANGE))
    takeover = staticmethod(lambda request, obj: request.user.is_superuser)


def meanwhile() -> None:
    if MEANWHILE:
        MEANWHILE.pop()()


def form_of(of: Any, *names: str) -> Any:
    return forms.modelform_factory(of, fields=names)


ArticleForm = form_of(Article, "title", "body")
GroupForm = form_of(Group, "name", "permissions")
SourceFormSet = inlineformset_factory(Article, Source, fields=["name"], extra=1)


# classes


class Page:
    model = Article
    template_name = "editing_site/form.html"
    success_url = "/done/"


class Edit(EditLockMixin, Page, UpdateView):
    form_class = ArticleForm


class Careless(Edit):
    """A view whose author has not read the docs: it keeps an old copy of the object, and saves all of it."""

    def get_object(self, queryset: Any = None) -> Any:
        if not hasattr(self, "_kept"):
            self._kept = super().get_object(queryset)
        return self._kept

    def form_valid(self, form: Any) -> HttpResponse:
        form.save()
        return HttpResponseRedirect("/done/")


class Again(Edit):
    """As "Save and continue"."""

    def get_success_url(self) -> str:
        return f"{self.request.path}?saved"


class Cheerful(SuccessMessageMixin, Edit):
    success_message = "Saved."


class ByQuery(Edit):
    """The object is named in the query; it asks which address was called, and needs what dispatch() has kept."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        self.pk = request.GET.get("id")
        return super().dispatch(request, *args, **kwargs)

    def get_object(self, queryset: Any = None) -> Any:
        assert self.request.resolver_match.url_name == "query"
        return get_object_or_404(Article, pk=self.pk)


class Guarded(PermissionRequiredMixin, Edit):
    """Its mixin asks in dispatch()."""

    permission_required = CHANGE
    raise_exception = True


class Posting(Edit):
    """Its own post() saves before the mixin is asked."""

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        Article.objects.update(body="By a post() of its own.")
        return super().post(request, *args, **kwargs)


class Locking(Edit):
    """Locks rows before it saves, as ATOMIC_REQUESTS allows."""

    def get_queryset(self) -> Any:
        if self.request.method == "POST":
            list(Article.objects.using("postgres").select_for_update())
        return super().get_queryset()


def answering(*args: Any, **kwargs: Any) -> Any:
    """A view that answers so after a save, for a script."""

    class Answering(Edit):
        def form_valid(self, form: Any) -> HttpResponse:
            super().form_valid(form)
            return HttpResponse(*args, **kwargs)

    return Answering.as_view()


class Profile(EditLockMixin, Page, UpdateView):
    """The object is lazy."""

    model = User
    fields = ("first_name",)

    def get_object(self, queryset: Any = None) -> Any:
        return self.request.user


class Delete(EditLockMixin, Page, DeleteView):
    pass


class DeleteAtOnce(EditLockMixin, Page, DeletionMixin, SingleObjectMixin, View):
    """POST calls delete()."""


class SecretForm(forms.Form):
    title = forms.CharField()
    password = forms.CharField(required=False, widget=forms.PasswordInput)
    picture = forms.FileField(required=False)
    day = forms.DateField(required=False)


class Publish(EditLockMixin, Page, SingleObjectMixin, FormView):
    """A form of no model, with an object."""

    form_class = SecretForm
    initial: ClassVar = {"title": "as before"}

    def form_valid(self, form: Any) -> HttpResponse:
        Article.objects.filter(pk=self.object.pk).update(title=form.cleaned_data["title"])
        return super().form_valid(form)


class Row(EditLockMixin, Page, UpdateView):
    """A row of an inline on a page of its own."""

    model = Source
    fields = ("name",)


class Everything(Edit):
    """With an inline formset, as the books have it."""

    edit_lock_inlines = (SourceFormSet,)
    page = Template(
        '{% load editing %}<form id="all" method="post" autocomplete="off">{% csrf_token %}'
        "{% edit_lock form.instance %}{{ form.as_div }}{{ formset.as_div }}</form>"
    )

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        data = self.request.POST if self.request.method == "POST" else None
        kwargs.setdefault("formset", SourceFormSet(data, instance=self.object))
        return super().get_context_data(**kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        formset = SourceFormSet(self.request.POST, instance=self.object)
        if not formset.is_valid():
            return self.form_invalid(form)
        formset.save()
        return super().form_valid(form)

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        return HttpResponse(self.page.render(Context({**context, "request": self.request, "csrf_token": "x"})))


class Loading:
    """Loads the many-to-many rows along with the object."""

    def get_object(self, *args: Any, **kwargs: Any) -> Any:
        found = super().get_object(*args, **kwargs)
        meanwhile()
        return found


class GroupEdit(EditLockMixin, Loading, Page, UpdateView):
    queryset = Group.objects.prefetch_related("permissions")
    form_class = GroupForm


# functions


def acting(model: Any, form_class: Any) -> Any:
    def act(request: HttpRequest, pk: int) -> HttpResponse:
        obj = get_object_or_404(model, pk=pk)
        form = form_class(request.POST or None, instance=obj)  # reads the many-to-many rows
        if request.method == "POST" and form.is_valid():
            form.save()
            return HttpResponseRedirect("/done/")
        meanwhile()
        return render(request, "editing_site/form.html", {"form": form, "object": obj})

    return act


act, act_on_group = acting(Article, ArticleForm), acting(Group, GroupForm)


def locked(**options: Any) -> Any:
    """A function view with the options of ``@edit_locked``."""
    return edit_locked(Article, **options)(act)


@edit_locked(Article)
def counted(request: HttpRequest, pk: int) -> HttpResponse:
    page = act(request, pk)
    if request.method == "GET":
        return page
    request.edit_lock.object.refresh_from_db()
    request.edit_lock.wrote()
    return JsonResponse({"saved": True})


def streaming(*args: Any, **kwargs: Any) -> StreamingHttpResponse:
    """The answer of a view that saves in the body of its answer."""
    return StreamingHttpResponse(str(Article.objects.update(body="By the body.")) for _ in range(1))


class Streaming(Edit):
    def form_valid(self, form: Any) -> Any:
        return streaming()


@edit_locked(Article, permission=CHANGE, mode="enforce")
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


@edit_locked(Group)
async def group_coroutine(request: HttpRequest, pk: int) -> HttpResponse:
    return await sync_to_async(act_on_group)(request, pk)


def own_answer(request: HttpRequest, refusal: Any, pk: int) -> HttpResponse:
    return HttpResponse(refusal.text, status=418)


# the REST framework


def serializer_of(of: Any, *names: str) -> Any:
    meta = type("Meta", (), {"model": of, "fields": names})
    return type("Serializer", (serializers.ModelSerializer,), {"Meta": meta})


class Api(EditLockViewSetMixin, viewsets.ModelViewSet):
    queryset = Article.objects.all()
    serializer_class = serializer_of(Article, "id", "title", "body", "section")
    authentication_classes = (SessionAuthentication,)
    permission_classes = (permissions.IsAuthenticated,)

    def destroy(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return streaming() if "stream" in request.query_params else super().destroy(request, *args, **kwargs)

    def publish(self, request: Any, pk: int) -> HttpResponse:
        with edit_lock(self.get_object(), by="the API"):
            return HttpResponse("published")


class OwnApi(Api):
    """Its route has another argument."""

    def get_object(self) -> Any:
        return Article.objects.get(pk=self.kwargs["number"])


class StrictApi(Api):
    edit_if_match_required = True


class GroupApi(Loading, Api):
    queryset = GroupEdit.queryset
    serializer_class = serializer_of(Group, "name", "permissions")


# admins


class SourceInline(admin.TabularInline):
    model = Source
    extra = 0


class Parents(EditLockAdmin, admin.ModelAdmin):
    """The model of its inline has a page of its own, too."""

    list_display = ("title", "section")
    list_editable = ("section",)
    list_filter = ("section",)
    search_fields = ("title",)
    inlines = (SourceInline,)
    save_as = True
    actions = ("publish",)

    @admin.action(description="Publish")
    def publish(self, request: HttpRequest, queryset: Any) -> None:
        self.message_user(request, f"{queryset.update(published=True)} published")


class Children(EditLockAdmin, admin.ModelAdmin):
    edit_lock: ClassVar = {"WHEN": "open", "IDLE": 120}
    edit_lock_column = False


class GroupAdmin(EditLockAdmin, Loading, admin.ModelAdmin):
    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related("permissions")


class Elsewhere(Parents):
    """In another database than the router says, as in Django's docs on several databases."""

    inlines = ()

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).using("postgres")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        obj.save(using="postgres")


class Popup(EditLockAdmin, admin.ModelAdmin):
    fields = ("title", "body")

    def response_change(self, request: HttpRequest, obj: Any) -> HttpResponse:
        super().response_change(request, obj)
        return JsonResponse({"saved": True})


OLD = {"body": "An old text.", "section": "culture"}


class RollBack(Exception):
    def __init__(self, response: HttpResponse) -> None:
        self.response = response


class Revisions:
    """Does what django-reversion's VersionAdmin does: https://github.com/etianen/django-reversion"""

    fields = ("title", "body")
    list_display = ("title", "section")
    list_editable = ("section",)

    def get_urls(self) -> list[Any]:
        revision, recover = map(self.admin_site.admin_view, (self.revision_view, self.recover_view))
        return [
            re_path(r"^([^/]+)/history/(\d+)/$", revision, name="articles_article_revision"),
            re_path(r"^recover/(\d+)/$", recover),
            *super().get_urls(),
        ]

    @transaction.atomic
    def change_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return super().change_view(request, *args, **kwargs)

    @transaction.atomic
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        return super().changelist_view(request, extra_context)

    def revision_view(self, request: HttpRequest, object_id: str, version_id: str) -> HttpResponse:
        return self._form_of(request, unquote(object_id), lambda pk: Article.objects.filter(pk=pk).update(**OLD))

    def recover_view(self, request: HttpRequest, version_id: str) -> HttpResponse:
        return self._form_of(request, version_id, lambda pk: Article(pk=pk, title="Back", **OLD).save())

    def _form_of(self, request: HttpRequest, pk: str, revert: Any) -> HttpResponse:
        try:
            with transaction.atomic():
                revert(pk)
                with transaction.atomic():
                    response: Any = self.changeform_view(request, quote(pk), request.path, None)
                    if request.method != "POST" or response.status_code != 302:
                        if response.status_code != 200:
                            raise LookupError("Could not load the version - not found")
                        response.render()
                        raise RollBack(response)
        except LookupError as error:
            messages.error(request, str(error))
            return redirect("versioned:articles_article_changelist")
        except RollBack as rolled_back:
            return rolled_back.response
        return response


class Versioned(EditLockAdmin, Revisions, admin.ModelAdmin):
    pass


class Outside(Revisions, EditLockAdmin, admin.ModelAdmin):
    """Its transactions begin before the edit lock is asked."""


# addresses


def admin_site(name: str, *admins: tuple[Any, Any]) -> Any:
    """The addresses of an admin with these models."""
    made = admin.AdminSite(name)
    for model, of_model in admins:
        made.register(model, of_model)
    return path(f"{name}/", made.urls)


atomic = method_decorator(transaction.atomic, name="dispatch")
one: dict[str, Any] = {"get": "retrieve", "put": "update", "patch": "partial_update", "delete": "destroy"}
VIEWS: dict[str, Any] = {
    "edit": Edit.as_view(),
    "careless": Careless.as_view(),
    "guarded": Guarded.as_view(),
    "guarded-function": permission_required(CHANGE, raise_exception=True)(locked()),
    "again": Again.as_view(),
    "cheerful": Cheerful.as_view(),
    "posting": Posting.as_view(),
    "unlocked": act,
    "locking": Locking.as_view(),
    "quiet": answering(b"Saved."),
    "empty": answering(status=204),
    "download": answering(b"a,b", headers={"Content-Disposition": "attachment"}),
    "inside": atomic(type("Inside", (Edit,), {})).as_view(),
    "delete": Delete.as_view(),
    "at-once": DeleteAtOnce.as_view(),
    "publish": Publish.as_view(),
    "row": Row.as_view(),
    "profile": Profile.as_view(),
    "all": Everything.as_view(),
    "function": locked(),
    "counted": counted,
    "stream": Streaming.as_view(),
    "stream-function": edit_locked(Article)(streaming),
    "own": locked(on_conflict=own_answer),
    "eager": locked(when="open", idle=333),
    "by-name": locked(permission=CHANGE),
    "by-name-open": locked(permission=CHANGE, when="open"),
    "by-name-off": locked(permission=CHANGE, mode="off"),
    "by-call": locked(
        permission=lambda request, obj: Rules.permission(request, obj),
        takeover=lambda request, obj: Rules.takeover(request, obj),
    ),
    "decorated": transaction.atomic(locked()),
    "async": coroutine,
    "api": Api.as_view(one),
    "strict-api": StrictApi.as_view(one),
    "atomic-api": atomic(type("AtomicApi", (Api,), {})).as_view(one),
    "group": GroupEdit.as_view(),
    "group-function": edit_locked(Group)(act_on_group),
    "group-async": group_coroutine,
    "group-api": GroupApi.as_view(one),
}
urlpatterns = [
    *(path(f"{name}/<int:pk>/", view, name=name) for name, view in VIEWS.items()),
    path("query/", ByQuery.as_view(), name="query"),
    path("api/<int:pk>/publish/", Api.as_view({"post": "publish"})),
    path("api/", Api.as_view({"get": "list", "post": "create"})),
    path("own-api/<int:number>/", OwnApi.as_view(one)),
    admin_site("family", (Article, Parents), (Source, Children), (Group, admin.ModelAdmin)),
    admin_site("elsewhere", (Article, Elsewhere)),
    admin_site("groups", (Group, GroupAdmin)),
    admin_site("popups", (Article, Popup)),
    admin_site("versioned", (Article, Versioned)),
    admin_site("outside", (Article, Outside)),
    *of_the_scene,
]
