"""The response to a request whose view met a busy lock, and the language of the package's own pages."""

from __future__ import annotations

import math
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import get_language_info, pgettext
from django.utils.translation import gettext as _

from .exceptions import LockNotAcquired


def text_language() -> str:
    """The code of the language in which the package's own texts come out now, such as ``"de"``.

    It differs from the language of the request where the site speaks one without a catalog here: the texts are English
    then, and with ``lang="it"`` a screen reader would read them with an Italian voice (WCAG 3.1.1).
    """
    # Translators: the code of the language into which you translate, such as "de" or "pt-br".
    return pgettext("code of the language of these translations", "en")


def language_of_texts() -> dict[str, Any]:
    """That language for a template: ``code``, ``bidi`` and the names that Django knows."""
    facts: dict[str, Any] = get_language_info(text_language())
    return facts


class LockBusyMiddleware(MiddlewareMixin):
    """Answers a request whose view raises :class:`~django_distlock.LockNotAcquired` by ``503 Service Unavailable``.

    With ``Retry-After`` (seconds), a small page for browsers (template ``django_distlock/busy.html``) and
    ``application/problem+json`` (RFC 9457) for clients that prefer JSON. Other errors of locks stay errors, for example
    that of a backend that is down.
    """

    # Seconds after which a client may try again.
    retry_after = 2.0

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """The response for a busy lock; None for other exceptions."""
        if not isinstance(exception, LockNotAcquired):
            return None
        title = _("Busy")
        detail = _("Somebody else is doing the same thing right now. Please try again in a moment.")
        retry_after = max(1, math.ceil(self.retry_after))
        response: HttpResponse
        if _prefers_json(request):
            response = JsonResponse(
                {"type": "about:blank", "title": title, "status": 503, "detail": detail},
                status=503,
                content_type="application/problem+json",
            )
        else:
            context = {"title": title, "detail": detail, "retry_after": retry_after, "language": language_of_texts()}
            response = HttpResponse(render_to_string("django_distlock/busy.html", context, request), status=503)
        response["Content-Language"] = text_language()
        response["Retry-After"] = str(retry_after)
        response["Cache-Control"] = "no-store"
        response["Vary"] = "Accept"
        return response


def _prefers_json(request: HttpRequest) -> bool:
    preferred = request.get_preferred_type(["text/html", "application/json", "application/problem+json"])
    return preferred is None or preferred != "text/html"
