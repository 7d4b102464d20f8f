"""A site for the browser cases: a room that only one may be in, a form, log-in, log-out, and the ledger."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from django.contrib.auth import login, logout
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template import engines
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt

from django_distlock.browser import lock_grant, requires_lock
from tests.browserlocks.ledger import ledger

HEAD = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title></head><body>'
ROOM = (
    HEAD + '<p id="room" data-name="{{ name }}" data-grant="{{ grant }}" data-test="{{ test }}">'
    "{{ request.user.username }}</p>"
    '<a href="/elsewhere/">Elsewhere</a><script type="module" src="/room.js"></script>'
)
FORM = (
    HEAD + '<form method="post" action="/slow/" data-distlock-once="{{ seconds }}">{% csrf_token %}'
    '<button name="act" value="pay">Pay</button></form><p id="blocked">0</p>'
    '<script type="module" src="/static/django_distlock/distlock-once.js"></script>'
    '<script type="module" src="/form.js"></script>'
)
posts: list[str] = []


def rendered(request: HttpRequest, text: str, **context: Any) -> HttpResponse:
    return HttpResponse(engines["django"].from_string(text).render(context, request))


def log_in(request: HttpRequest, slug: str) -> HttpResponse:
    login(request, get_object_or_404(User, username=slug), backend="django.contrib.auth.backends.ModelBackend")
    return rendered(request, HEAD + '<p id="me">{{ request.user.username }}</p>', title="Logged in")


def log_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return HttpResponse("Logged out.")


def room(request: HttpRequest) -> HttpResponse:
    query = request.GET
    options = {key: float(query[key]) for key in ("ttl", "max_hold") if key in query}
    signed = lock_grant(query["name"], request, **options)  # type: ignore[arg-type]
    return rendered(request, ROOM, title="A room", name=query["name"], grant=signed, test=ledger.test)


def elsewhere(request: HttpRequest) -> HttpResponse:
    return rendered(request, HEAD + "<p>Elsewhere</p>", title="Elsewhere")


def script(request: HttpRequest, name: str) -> HttpResponse:
    return HttpResponse(Path(__file__).with_name(f"{name}.js").read_text(), content_type="text/javascript")


@csrf_exempt
def ledger_view(request: HttpRequest, room: str, verb: str) -> HttpResponse:
    query = request.GET
    if query["test"] != str(ledger.test):
        return HttpResponse(status=204)
    if verb == "enter":
        ledger.enter(room, query["who"], int(query["fence"]) if "fence" in query else None)
    else:
        ledger.leave(room, query["who"])
    return HttpResponse(status=204)


@csrf_exempt
@requires_lock("cart")
def guarded(request: HttpRequest) -> HttpResponse:
    return HttpResponse("Done.")


def form(request: HttpRequest) -> HttpResponse:
    return rendered(request, FORM, title="A form", seconds=request.GET.get("seconds", ""))


def slow(request: HttpRequest) -> HttpResponse:
    posts.append(request.POST["act"])
    time.sleep(0.5)
    if request.POST.get("empty"):
        return HttpResponse(status=204)
    return rendered(request, HEAD + "<p>Paid</p>", title="Paid")


urlpatterns = [
    path("distlock/", include("django_distlock.browser.urls")),
    path("as/<slug:slug>/", log_in),
    path("out/", log_out),
    path("room/", room),
    path("elsewhere/", elsewhere),
    path("<slug:name>.js", script),
    path("ledger/<slug:room>/<slug:verb>/", ledger_view),
    path("guarded/", guarded),
    path("form/", form),
    path("slow/", slow),
]
