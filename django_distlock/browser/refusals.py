"""The answer to a request without the lock that its view requires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from django.http import HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from django_distlock.http.bodies import private
from django_distlock.middleware import language_of_texts, text_language

if TYPE_CHECKING:
    from django.http import HttpRequest

Reason = Literal["missing", "lost", "busy"]
LOCKED = 423
# Seconds after which a client tries again if other requests have kept the rows busy.
RETRY_AFTER = 1


def refused(request: HttpRequest, reason: Reason) -> HttpResponse:
    """A small page for a browser, problem+json (RFC 9457) for a script. Neither says who has the lock."""
    title, detail = _("Nothing was done"), _texts()[reason]
    response: HttpResponse
    if _wants_a_page(request):
        context = {"title": title, "detail": detail, "language": language_of_texts()}
        response = HttpResponse(render_to_string("django_distlock/browser/locked.html", context, request))
        response["Content-Language"] = text_language()
    else:
        facts = {"type": "about:blank", "title": title, "status": LOCKED, "detail": detail, "reason": reason}
        response = JsonResponse(facts, content_type="application/problem+json")
    response.status_code = LOCKED
    response["Vary"] = "Accept"
    if reason == "busy":
        response["Retry-After"] = str(RETRY_AFTER)
    response._has_been_logged = True  # type: ignore[attr-defined]  # no incident: Django would warn of it
    return private(response)


def _texts() -> dict[Reason, str]:
    return {
        "missing": _("This needs a lock that your page does not hold. Nothing was changed; load the page again."),
        "lost": _("Your page has lost its lock, for example to another tab. Nothing was changed; load the page again."),
        "busy": _("Other requests are using this right now. Nothing was changed; please try again in a moment."),
    }


def _wants_a_page(request: HttpRequest) -> bool:
    """Has a browser sent this by itself, a form for example? Scripts send the header, or accept anything."""
    if "Distlock-Lease" in request.headers:
        return False
    types = ["application/json", "application/problem+json", "text/html"]
    return request.get_preferred_type(types) == "text/html"
