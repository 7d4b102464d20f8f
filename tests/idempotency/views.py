"""Views in every shape, and their URLs: /<shape>/. What they do is on the stage."""

from __future__ import annotations

import inspect
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.views import LoginView
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import cache_page
from django.views.decorators.csrf import csrf_exempt

from django_distlock.idempotency import idempotency_exempt, idempotent
from tests.idempotency.world import redirect as redirect
from tests.idempotency.world import stage as stage
from tests.transactions import rows

# A lease that is over soon, and that a busy machine can renew in time; seconds.
BRIEF = 1.2
FORM = """{% load idempotency %}<form method="post">{% csrf_token %}{% idempotency_key %}
<input name="name"><button name="save">A</button><button name="publish">B</button></form>
<form method="post" action="/elsewhere/">{% csrf_token %}{% idempotency_key "/elsewhere/" "/plain/" %}</form>"""


def act(request: HttpRequest, **kwargs: Any) -> Any:
    stage.runs.append(request)
    rows.write(stage.alias, stage.name)
    stage.during(request)
    return stage.answer(request)


async def aact(request: HttpRequest, **kwargs: Any) -> Any:
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


hidden = copy_of  # as a decorator without functools.wraps


def own(view: Any = act, **options: Any) -> Any:
    """The view with such options."""
    return idempotent(**options)(copy_of(view))


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


def dispatched(view: type[View]) -> Any:
    return method_decorator(idempotent(required=True), name="dispatch")(type("Own", (view,), {})).as_view()


def show(request: HttpRequest, **kwargs: Any) -> Any:
    """The page with two forms; a POST acts."""
    if request.method == "POST":
        return act(request)
    return HttpResponse(engines["django"].from_string(FORM).render({}, request))


def show_lazily(request: HttpRequest) -> TemplateResponse:
    return TemplateResponse(request, engines["django"].from_string(FORM))  # type: ignore[arg-type]


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
    "decorated": own(),
    "non_atomic": idempotent(non_atomic_requests(copy_of(act))),
    "async_decorated": idempotent(aact),
    "atomic": own(atomic=True),
    "atomic_form": own(show, atomic=True),
    "required": own(required=True),
    "required_atomic": own(required=True, atomic=True),
    "waiting": own(wait=60),
    "async_waiting": idempotent(wait=60)(aact),
    "atomic_impatient": own(atomic=True, wait=0.5),
    "atomic_waiting": own(atomic=True, wait=60),
    "hold": own(on_crash="hold"),
    "retry": own(on_crash="retry"),
    "brief": own(claim_ttl=BRIEF),
    "callable": own(on_crash=lambda request, record: HttpResponse("found", status=200)),
    "undecided": own(on_crash=lambda request, record: None),
    "open": own(on_store_error="open"),
    "atomic_open": own(atomic=True, on_store_error="open"),
    "excluding": own(fingerprint_exclude=["at"]),
    "anonymous": own(anonymous=True),
    "webhook": csrf_exempt(own(key=from_body)),
    "async_webhook": csrf_exempt(idempotent(key=from_body)(aact)),
    "exempt_of_csrf": csrf_exempt(copy_of(act)),
    "dispatch": dispatched(ClassBased),
    "async_dispatch": dispatched(AsyncClassBased),
    "handler": OnHandler.as_view(),
    "login": Derived.as_view(),
}
urlpatterns = [
    *(path(f"{shape}/", view) for shape, view in SHAPES.items()),
    path("items/<int:pk>/", act),
    path("named/<str:name>/", show),
]
