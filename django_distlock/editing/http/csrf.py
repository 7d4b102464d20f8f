"""The page that keeps the text of a form when Django's CSRF check refuses it, after a log-in in another tab.

``CSRF_FAILURE_VIEW = "django_distlock.editing.http.csrf.csrf_failure"`` shows what was typed, and a button. It lets no
request pass: the button sends a new one, which is checked like any other. The page is shown only for a form of this
site that was rendered for this visitor; otherwise Django's own page is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.views.csrf import csrf_failure as django_failure

from django_distlock.editing.conf import config
from django_distlock.http.csrf import SESSION_CHANGED, is_sent_by_this_site
from django_distlock.http.grants import GrantError
from django_distlock.http.visitors import visitor_of

from . import refusals
from .forms import Posted
from .refusals import Refusal

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


def csrf_failure(request: HttpRequest, reason: str = "", **kwargs: Any) -> HttpResponse:
    """For the setting ``CSRF_FAILURE_VIEW``: the page that keeps the form, else Django's own page."""
    return keep_form(request, reason) or django_failure(request, reason=reason, **kwargs)


def keep_form(request: HttpRequest, reason: str = "") -> HttpResponse | None:
    """The page that keeps the text of a form, for your own failure view; None if this is no such form."""
    if request.method != "POST" or reason not in SESSION_CHANGED or not is_sent_by_this_site(request):
        return None
    posted = Posted.of(request)
    try:
        if posted.grant(visitor_of(request, config().label_of)) is None:
            return None
    except GrantError:
        return None
    return refusals.page(request, Refusal(reason="csrf"))
