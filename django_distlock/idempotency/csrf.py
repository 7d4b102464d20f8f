"""The page that keeps the data of a form after a log-in in another tab, when Django's CSRF check refuses the form.

``CSRF_FAILURE_VIEW = "django_distlock.idempotency.csrf.csrf_failure"`` shows the data and a button. It lets no request
pass: the button sends a new request, which is checked like any other. The page is shown only for a form of this site,
so that another site cannot show a visitor data of its choice: the ``Origin`` must be this host, and the key of the form
must be signed for this visitor, or for this browser before the log-in. Otherwise Django's own page is shown.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.db import Error
from django.middleware.csrf import CSRF_SESSION_KEY
from django.views.csrf import csrf_failure as django_failure

from django_distlock import BackendUnavailable, LockNotAcquired
from django_distlock.concurrency.flow import run
from django_distlock.http.csrf import SESSION_CHANGED, is_sent_by_this_site

from . import decisions
from .conf import csrf_cookie
from .decisions import BadKey
from .decorator import imported
from .execution import alias_of, load_site_key
from .http import forms, responses
from .http.requests import FIELD, browser_text, fingerprint_of, form_fields, principal_of, route_of, tenant_of
from .middleware import position_of_middleware
from .options import PLAIN, options_of
from .storage import storage_of

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

logger = logging.getLogger("django_distlock.idempotency")
KNOWN_BEFORE = "_distlock_before_login"  # session key: the principals of this browser before its log-ins
MOST_KNOWN_BEFORE = 3


def csrf_failure(request: HttpRequest, reason: str = "", **kwargs: Any) -> HttpResponse:
    """For the setting ``CSRF_FAILURE_VIEW``: the page that keeps the form, else Django's own page."""
    return keep_form(request, reason) or django_failure(request, reason=reason, **kwargs)


def keep_form(request: HttpRequest, reason: str = "") -> HttpResponse | None:
    """The page that keeps the data of a form, for your own failure view; None if this is no such form."""
    if request.method != "POST" or reason not in SESSION_CHANGED or not is_sent_by_this_site(request):
        return None
    try:
        values = form_fields(request).getlist(FIELD)
    except BadKey:  # without the cookie Django refuses a form before reading it
        return None
    if len(values) != 1:
        return None
    try:
        is_mine = forms.verify(request, values[0], principal_of(request).text) is forms.Verified.GOOD
        before = None if is_mine else _principal_before_login(request, values[0])
        if not is_mine and before is None:
            return None
        if before is not None and (page := _sent_before(request, values[0], before)) is not None:
            return page
    except (Error, BackendUnavailable, LockNotAcquired):  # the database of the sessions, users or keys is down
        logger.exception("It could not be seen whose form was sent to %s.", ascii(request.path))
        return None
    # the same key if it is valid: if the form was already saved, the stored answer is given
    return responses.session_changed(request, values[0] if is_mine else None)


def _principal_before_login(request: HttpRequest, key: str) -> str | None:
    """The principal of this browser when it opened the form, before the log-in; None if it did not open the form."""
    session: Any = getattr(request, "session", None)
    before: list[str] = [] if session is None else session.get(KNOWN_BEFORE, [])
    return next((text for text in before if forms.verify(request, key, text) is forms.Verified.GOOD), None)


def _sent_before(request: HttpRequest, key: str, text: str) -> HttpResponse | None:
    """The page for a form that was already sent before the log-in, like a sign-up form, which logs its sender in.

    If the page called the form "not saved", the visitor would save it twice.
    """
    match, secret = request.resolver_match, run(load_site_key())
    options = (match and options_of(match.func, "POST")) or PLAIN
    number = key.partition(".")[0]
    scope = decisions.scope_of(secret, tenant_of(request, options), text, "POST", route_of(request), number)
    record = storage_of(alias_of(options)).read(scope)
    if record is None or decisions.judge(record, record.fingerprint) is decisions.Decision.TAKE_OVER:
        return None
    return responses.sent_before(
        request, record, changed=record.fingerprint != fingerprint_of(request, secret, options)
    )


def remember(request: Any, **kwargs: Any) -> None:
    """Note the CSRF cookie, which identified the browser so far, in the new session: a log-in replaces it.

    A receiver of ``user_logged_in``; apps.py connects it, because a process may see log-ins before it imports this. A
    site without views that take keys is left alone.
    """
    if not imported.views and position_of_middleware() is None:
        return
    session = getattr(request, "session", None)
    if session is None:
        return
    cookie = csrf_cookie()
    secret = session.get(CSRF_SESSION_KEY) if cookie is None else getattr(request, "COOKIES", {}).get(cookie)
    if secret:
        session[KNOWN_BEFORE] = [*session.get(KNOWN_BEFORE, []), browser_text(secret)][-MOST_KNOWN_BEFORE:]
