"""The page that keeps the data of a form if Django's CSRF check refuses it after a log-in in another tab.

``CSRF_FAILURE_VIEW = "django_distlock.idempotency.csrf.csrf_failure"`` shows the data and a button. It lets no request
pass: the button sends a new request, which is checked like any other. The page is shown only for a form that the same
user has opened on this site, so that another site cannot show a visitor data of its choice: the ``Origin`` must be this
host, and the key of the form must be signed for this user. Otherwise Django's own page is shown.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.db import Error
from django.views.csrf import csrf_failure as django_failure

from django_distlock.http.csrf import SESSION_CHANGED, is_sent_by_this_site

from .decisions import BadKey
from .http import forms, responses
from .http.requests import FIELD, form_fields, principal_of

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

logger = logging.getLogger("django_distlock.idempotency")


def csrf_failure(request: HttpRequest, reason: str = "", **kwargs: Any) -> HttpResponse:
    """For the setting ``CSRF_FAILURE_VIEW``: the page that keeps the form, else Django's own page."""
    return keep_form(request, reason) or django_failure(request, reason=reason, **kwargs)


def keep_form(request: HttpRequest, reason: str = "") -> HttpResponse | None:
    """The page that keeps the data of a form, for your own failure view; None if this is no such form."""
    if request.method != "POST" or reason not in SESSION_CHANGED or not is_sent_by_this_site(request):
        return None
    try:
        keys = form_fields(request).getlist(FIELD)
        if len(keys) != 1 or not forms.is_valid(request, keys[0], principal_of(request).text):
            return None
    except BadKey:  # without the cookie Django refuses a form before reading it
        return None
    except Error:
        logger.exception("It could not be seen whose form was sent to %s.", ascii(request.path))
        return None
    # with its key: if the form was already saved, the stored answer is given
    return responses.session_changed(request, keys[0])
