"""One site for all of this folder: grants, views that require a lock, and pages; also for real servers."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth import login, logout
from django.contrib.auth.models import User
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.template import engines
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import ValidationError
from rest_framework.views import APIView

from django_distlock.browser import lock_grant, requires_lock
from django_distlock.browser.conf import config
from django_distlock.browser.events import watcher
from django_distlock.models import LockEvent
from tests.browserlocks.ledger import ledger
from tests.support.paths import PACKAGE

SCRIPTS = (Path(__file__).parent / "pages", PACKAGE / "static" / "django_distlock")
HEAD = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title></head><body>'
PAGE = HEAD + (
    '{% load distlock_browser %}<p id="cart" data-grant="{% lock_grant name ttl=20 %}" data-label="{{ label }}">'
    "{{ name }}</p>"
)
ROOM = HEAD + (
    '<p id="room" data-name="{{ name }}" data-grant="{{ grant }}" data-test="{{ test }}">{{ request.user.username }}'
    '</p><a href="/elsewhere/">Elsewhere</a><script type="module" src="/room.js"></script>'
)
FORM = HEAD + (
    '<form method="post" action="/slow/" data-distlock-once="{{ seconds }}">{% csrf_token %}'
    '<button name="act" value="pay">Pay</button></form>'
    '<script type="module" src="/static/django_distlock/distlock-once.js"></script>'
    '<script type="module" src="/form.js"></script>'
)
NAME = "cart:{request.user.pk}"
inside: list[asyncio.Event] = []  # set by a view with the header X-Stay, which ends when its task is cancelled
posts: list[str] = []  # what the form has sent


def rendered(request: HttpRequest, text: str, **context: Any) -> HttpResponse:
    return HttpResponse(engines["django"].from_string(text).render(context, request))


def signed(request: HttpRequest) -> str:
    """A grant of the sender's choice."""
    query = request.GET
    options: dict[str, Any] = {key: float(query[key]) for key in ("ttl", "max_hold") if key in query}
    options |= {"audience": query["audience"]} if "audience" in query else {}
    return lock_grant(query["name"], request, **options)


def page(request: HttpRequest) -> HttpResponse:
    return rendered(request, PAGE, name=request.GET["name"], label=request.GET.get("label", ""))


# views that require a lock


def write() -> None:
    """What a view does: a row that a rollback takes back."""
    LockEvent.objects.create(name="guarded", at="2026-01-01T00:00Z")


def report(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    if request.method in ("GET", "HEAD"):
        return HttpResponse("the page")
    write()
    leases = request.distlock_leases  # type: ignore[attr-defined]
    blocks = len(connections[config().database].atomic_blocks)
    if "X-Fail" in request.headers:
        raise ZeroDivisionError
    return JsonResponse({"fences": {name: lease.fence for name, lease in leases.items()}, "blocks": blocks})


async def coroutine(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    found = await sync_to_async(report)(request)
    if "X-Stay" in request.headers:
        inside[0].set()
        await asyncio.Event().wait()
    return found


class Plain(View):
    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        return report(request)

    get = post


class Async(View):
    async def post(self, request: HttpRequest) -> HttpResponse:
        return await coroutine(request)


class Rest(APIView):
    authentication_classes = (SessionAuthentication,)

    def post(self, request: Any) -> HttpResponse:
        write()
        raise ValidationError("after the write")


def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(write() or b"done" for _ in range(1))


async def async_stream(request: HttpRequest) -> StreamingHttpResponse:
    return stream(request)


def done(request: HttpRequest) -> HttpResponse:
    return HttpResponse("Done.")


locked = requires_lock(NAME)


def locked_class(base: type[View], method: str = "dispatch") -> Any:
    return method_decorator(locked, name=method)(type("Locked", (base,), {})).as_view()


# pages


def log_in(request: HttpRequest, slug: str) -> HttpResponse:
    login(request, get_object_or_404(User, username=slug), backend="django.contrib.auth.backends.ModelBackend")
    return rendered(request, HEAD + '<p id="me">{{ request.user.username }}</p>', title="Logged in")


def log_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return HttpResponse("Logged out.")


def room(request: HttpRequest) -> HttpResponse:
    return rendered(request, ROOM, title="A room", name=request.GET["name"], grant=signed(request), test=ledger.test)


def elsewhere(request: HttpRequest) -> HttpResponse:
    return rendered(request, HEAD + "<p>Elsewhere</p>", title="Elsewhere")


def isolated(request: HttpRequest) -> HttpResponse:
    """A page that may share memory with workers, unless the query takes one of the headers away."""
    response = elsewhere(request)
    response["Cross-Origin-Opener-Policy"] = request.GET.get("opener", "same-origin")
    response["Cross-Origin-Embedder-Policy"] = request.GET.get("embedder", "require-corp")
    return response


def script(request: HttpRequest, name: str) -> HttpResponse:
    """WebKit wants the header on the modules that a worker imports, too."""
    [text] = [file.read_text() for folder in SCRIPTS if (file := folder / f"{name}.js").exists()]
    headers = {} if "bare" in request.GET else {"Cross-Origin-Embedder-Policy": "require-corp"}
    return HttpResponse(text, content_type="text/javascript", headers=headers)


@csrf_exempt
def ledger_view(request: HttpRequest, room: str, verb: str) -> HttpResponse:
    query = request.GET
    if query["test"] == str(ledger.test):
        fence = int(query["fence"]) if "fence" in query else None
        ledger.enter(room, query["who"], fence) if verb == "enter" else ledger.leave(room, query["who"])
    return HttpResponse(status=204)


def form(request: HttpRequest) -> HttpResponse:
    return rendered(request, FORM, title="A form", seconds=request.GET.get("seconds", ""))


def slow(request: HttpRequest) -> HttpResponse:
    posts.append(request.POST["act"])
    time.sleep(0.5)
    if request.POST.get("empty"):
        return HttpResponse(status=204)
    return rendered(request, HEAD + "<p>Paid</p>", title="Paid")


async def what_is_open(request: HttpRequest) -> HttpResponse:
    """Tasks and threads of this process, and the streams of events."""
    names = [thread.name for thread in threading.enumerate()]
    watchers = sum(name.startswith("distlock-browser") for name in names)
    tasks, streams = len(asyncio.all_tasks()), len(watcher._streams)
    return JsonResponse({"tasks": tasks, "streams": streams, "threads": len(names), "watchers": watchers})


urlpatterns = [
    path("open/", what_is_open),
    path("distlock/", include("django_distlock.browser.urls")),
    path("grant/", lambda request: JsonResponse({"grant": signed(request)})),
    path("page/", page),
    path("plain/", locked(report)),
    path("coroutine/", locked(coroutine)),
    path("of-class/", locked_class(Plain)),
    path("handler/", locked_class(Plain, "post")),
    path("async-of-class/", locked_class(Async)),
    path("rest/", locked_class(Rest)),
    path("two/", requires_lock(NAME, "till")(report)),
    path("nested/", locked(requires_lock("till")(report))),
    path("piece/<str:name>/", requires_lock("piece:{name}")(report)),
    path("reading/", requires_lock(NAME, methods=["GET"])(done)),
    path("stream/", locked(stream)),
    path("async-stream/", locked(async_stream)),
    path("guarded/", csrf_exempt(requires_lock("cart")(done))),
    path("as/<slug:slug>/", log_in),
    path("out/", log_out),
    path("room/", room),
    path("elsewhere/", elsewhere),
    path("isolated/", isolated),
    path("<slug:name>.js", script),
    path("ledger/<slug:room>/<slug:verb>/", ledger_view),
    path("form/", form),
    path("slow/", slow),
]
