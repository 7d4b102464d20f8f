"""A site with browser locks, for tests; also served by real servers."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import engines
from django.urls import include, path

from django_distlock.browser import lock_grant

PAGE = """{% load distlock_browser %}
<p id="cart" data-grant="{% lock_grant name ttl=20 %}" data-label="{{ label }}">{{ name }}</p>"""


def grant(request: HttpRequest) -> JsonResponse:
    """A grant of the sender's choice."""
    query = request.GET
    options: dict[str, Any] = {key: float(query[key]) for key in ("ttl", "max_hold") if key in query}
    options |= {"audience": query["audience"]} if "audience" in query else {}
    return JsonResponse({"grant": lock_grant(query["name"], request, **options)})


def page(request: HttpRequest) -> HttpResponse:
    template = engines["django"].from_string(PAGE)
    context = {"name": request.GET["name"], "label": request.GET.get("label", "")}
    return HttpResponse(template.render(context, request))


urlpatterns = [
    path("distlock/", include("django_distlock.browser.urls")),
    path("grant/", grant),
    path("page/", page),
]
