"""A form that was opened before its visitor logged in, in another tab: Django's CSRF check refuses it, and what was
typed would be lost.

``CSRF_FAILURE_VIEW = "django_distlock.idempotency.csrf.csrf_failure"`` shows a page with the data and a button instead.
It lets no request pass: the button sends a new request, which the CSRF check looks at like any other. The page appears
only to a browser that has sent its own form from this site, so that another site cannot have a visitor look at data of
its choice: the ``Origin`` is this host, and the key of the form was signed for this visitor, or for this browser before
the log-in. Else Django's own page is shown.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.contrib.auth.signals import user_logged_in
from django.db import Error
from django.middleware.csrf import CSRF_SESSION_KEY, REASON_NO_CSRF_COOKIE
from django.views.csrf import csrf_failure as django_failure

from django_distlock import BackendUnavailable, LockNotAcquired
from django_distlock.manager.site_key import site_key

from . import decisions
from .conf import config, csrf_cookie
from .decisions import BadKey
from .http import forms, responses
from .http.requests import FIELD, browser_text, fingerprint_of, form_fields, principal_of, route_of, tenant_of
from .options import PLAIN, options_of
from .storage import storage_of

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

logger = logging.getLogger("django_distlock.idempotency")
# What the middleware says of a token that belongs to another session of the same visitor.
REASONS = ("CSRF token from POST incorrect.", REASON_NO_CSRF_COOKIE)
BEFORE = "_distlock_before_login"  # in the session: as whom this browser was known
MOST_BEFORE = 3


def csrf_failure(request: HttpRequest, reason: str = "", **kwargs: Any) -> HttpResponse:
    """For the setting ``CSRF_FAILURE_VIEW``: the page that keeps the form, else Django's own."""
    return keep_form(request, reason) or django_failure(request, reason=reason, **kwargs)


def keep_form(request: HttpRequest, reason: str = "") -> HttpResponse | None:
    """The page that keeps the data of a form, for a failure view of your own; None if this is no such form."""
    if request.method != "POST" or reason not in REASONS or not _is_sent_by_this_site(request):
        return None
    try:
        values = form_fields(request).getlist(FIELD)
    except BadKey:  # without a cookie Django has refused the form before it was read
        return None
    if len(values) != 1:
        return None
    try:
        is_mine = forms.verify(request, values[0], principal_of(request).text) is forms.Verified.GOOD
        before = None if is_mine else _as_whom(request, values[0])
        if not is_mine and before is None:
            return None
        if before is not None and (page := _sent_before(request, values[0], before)) is not None:
            return page
    except (Error, BackendUnavailable, LockNotAcquired):  # the database that knows who asks, or the keys, is down
        logger.exception("It could not be seen whose form was sent to %s.", ascii(request.path))
        return None
    # the same key as long as it is good: if the form was saved before, its answer comes back
    return responses.session_changed(request, values[0] if is_mine else None)


def _is_sent_by_this_site(request: HttpRequest) -> bool:
    """Every browser says with a POST where it comes from. Django has looked at the scheme, and lets other sites in too
    that CSRF_TRUSTED_ORIGINS names."""
    try:
        origin: str = urlsplit(request.headers.get("Origin", "")).netloc
        return bool(origin) and origin == request.get_host()
    except ValueError:
        return False


def _as_whom(request: HttpRequest, key: str) -> str | None:
    """As whom this browser was known before the log-in, when the form was opened; None if it did not open the form."""
    session: Any = getattr(request, "session", None)
    before: list[str] = [] if session is None else session.get(BEFORE, [])
    return next((text for text in before if forms.verify(request, key, text) is forms.Verified.GOOD), None)


def _sent_before(request: HttpRequest, key: str, text: str) -> HttpResponse | None:
    """A form that logs its sender in (a sign-up) is sent for the first time before the log-in: to call it not saved
    would have it saved twice."""
    match, secret = request.resolver_match, site_key.load()
    options = (match and options_of(match.func, "POST")) or PLAIN
    alias = config().database if options.atomic is True else options.atomic or None
    number = key.partition(".")[0]
    scope = decisions.scope_of(secret, tenant_of(request, options), text, "POST", route_of(request), number)
    record = storage_of(alias).read(scope)
    if record is None or decisions.judge(record, record.fingerprint) is decisions.Verdict.TAKE_OVER:
        return None
    return responses.sent_before(
        request, record, changed=record.fingerprint != fingerprint_of(request, secret, options)
    )


def remember(sender: object, request: Any, **kwargs: Any) -> None:
    """A log-in gives the browser another CSRF cookie, by which it was known so far: note it in the new session."""
    session = getattr(request, "session", None)
    if session is None:
        return
    cookie = csrf_cookie()
    secret = session.get(CSRF_SESSION_KEY) if cookie is None else getattr(request, "COOKIES", {}).get(cookie)
    if secret:
        session[BEFORE] = [*session.get(BEFORE, []), browser_text(secret)][-MOST_BEFORE:]


user_logged_in.connect(remember, dispatch_uid="django_distlock.idempotency.csrf")
