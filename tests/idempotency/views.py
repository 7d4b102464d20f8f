"""Views in every shape, and their URLs: /<shape>/. What they do is on the stage; what they write is a row."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import cache_page
from django.views.decorators.csrf import csrf_exempt

from django_distlock.idempotency import idempotency_exempt, idempotent
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Callable

# A lease that is over soon, and that a busy machine can renew in time; seconds.
BRIEF = 1.2


class Stage:
    """What a view does for the running test: it writes a row of ``name`` to ``alias``, calls ``during``, and gives what
    ``answer`` returns."""

    def __init__(self) -> None:
        self.reset("default", "")

    def reset(self, alias: str, name: str) -> None:
        self.alias, self.name = alias, name
        self.runs: list[HttpRequest] = []
        self.during: Callable[[HttpRequest], Any] = lambda request: None
        self.answer: Callable[[HttpRequest], Any] = created

    @property
    def effects(self) -> int:
        return rows.count(self.alias, self.name)


def created(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"run": len(stage.runs)}, status=201, headers={"Location": "/made/1/", "X-Other": "no"})


def redirect(request: HttpRequest) -> HttpResponse:
    messages.success(request, "Saved.")
    return HttpResponseRedirect("/made/1/")


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse("the form with its errors")


stage = Stage()


def act(request: HttpRequest, **kwargs: Any) -> Any:
    stage.runs.append(request)
    rows.write(stage.alias, stage.name)
    stage.during(request)
    return stage.answer(request)


async def aact(request: HttpRequest, **kwargs: Any) -> Any:
    from asgiref.sync import sync_to_async

    stage.runs.append(request)
    await sync_to_async(rows.write)(stage.alias, stage.name)
    found = stage.during(request)
    if inspect.isawaitable(found):
        await found
    return await sync_to_async(stage.answer)(request)


def copy_of(view: Any) -> Any:
    """A copy of the view: a decorator marks the function that it wraps."""

    def view_of_its_own(request: HttpRequest, **kwargs: Any) -> Any:
        return view(request, **kwargs)

    return view_of_its_own


class ClassBased(View):
    def post(self, request: HttpRequest) -> Any:
        return act(request)


class AsyncClassBased(View):
    async def post(self, request: HttpRequest) -> Any:
        return await aact(request)


class OnHandler(View):
    @method_decorator(idempotent(atomic=True))
    def post(self, request: HttpRequest) -> Any:
        return act(request)


class Derived(LoginView):
    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return act(request)  # type: ignore[no-any-return]


def hidden(view: Any) -> Any:
    """A decorator without functools.wraps."""

    def above(request: HttpRequest) -> Any:
        return view(request)

    return above


FORM = """{% load idempotency %}<form method="post">{% csrf_token %}{% idempotency_key %}
<input name="name"><button name="save">A</button><button name="publish">B</button></form>
<form method="post" action="/elsewhere/">{% csrf_token %}{% idempotency_key "/elsewhere/" "/plain/" %}</form>"""


def show(request: HttpRequest, **kwargs: Any) -> Any:
    """The page with two forms; a POST acts."""
    if request.method == "POST":
        return act(request)
    return HttpResponse(engines["django"].from_string(FORM).render({}, request))


def show_lazily(request: HttpRequest) -> TemplateResponse:
    return TemplateResponse(request, engines["django"].from_string(FORM))  # type: ignore[arg-type]


def templated(request: HttpRequest) -> TemplateResponse:
    return TemplateResponse(request, engines["django"].from_string("rendered {{ a }}"), {"a": "late"}, status=201)  # type: ignore[arg-type]


def streamed(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse([b"a", b"b"])


def from_body(request: HttpRequest) -> str | None:
    return request.headers.get("X-Event")


SHAPES: dict[str, Any] = {
    "plain": act,
    "async": aact,
    "exempt": idempotency_exempt(copy_of(act)),
    "form": show,
    "elsewhere": copy_of(act),
    "cached": cache_page(60)(copy_of(show)),
    "cached_lazily": cache_page(60)(show_lazily),
    "decorated": idempotent(copy_of(act)),
    "async_decorated": idempotent(aact),
    "atomic": idempotent(atomic=True)(copy_of(act)),
    "atomic_form": idempotent(atomic=True)(copy_of(show)),
    "required": idempotent(required=True)(copy_of(act)),
    "required_atomic": idempotent(required=True, atomic=True)(copy_of(act)),
    "waiting": idempotent(wait=60)(copy_of(act)),
    "async_waiting": idempotent(wait=60)(aact),
    "atomic_impatient": idempotent(atomic=True, wait=0.5)(copy_of(act)),
    "atomic_waiting": idempotent(atomic=True, wait=60)(copy_of(act)),
    "hold": idempotent(on_crash="hold")(copy_of(act)),
    "retry": idempotent(on_crash="retry")(copy_of(act)),
    "brief": idempotent(claim_ttl=BRIEF)(copy_of(act)),
    "callable": idempotent(on_crash=lambda request, record: HttpResponse("found", status=200))(copy_of(act)),
    "undecided": idempotent(on_crash=lambda request, record: None)(copy_of(act)),
    "open": idempotent(on_store_error="open")(copy_of(act)),
    "atomic_open": idempotent(atomic=True, on_store_error="open")(copy_of(act)),
    "excluding": idempotent(fingerprint_exclude=["at"])(copy_of(act)),
    "anonymous": idempotent(anonymous=True)(copy_of(act)),
    "webhook": csrf_exempt(idempotent(key=from_body)(copy_of(act))),
    "async_webhook": csrf_exempt(idempotent(key=from_body)(aact)),
    "exempt_of_csrf": csrf_exempt(copy_of(act)),
    "hidden": hidden(idempotent(atomic=True)(copy_of(act))),
    "hidden_plain": hidden(idempotent(required=True)(copy_of(act))),
    "dispatch": method_decorator(idempotent(required=True), name="dispatch")(
        type("Dispatched", (ClassBased,), {})
    ).as_view(),
    "async_dispatch": method_decorator(idempotent(required=True), name="dispatch")(
        type("AsyncDispatched", (AsyncClassBased,), {})
    ).as_view(),
    "handler": OnHandler.as_view(),
    "login": Derived.as_view(),
}
urlpatterns = [
    *(path(f"{shape}/", view) for shape, view in SHAPES.items()),
    path("items/<int:pk>/", act),
    path("named/<str:name>/", show),
    path("<path:name>/form/", show),
]
