"""The answers that replace the view's: problem+json (RFC 9457) for programs, pages for people."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib.messages import get_messages
from django.core import signing
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template.loader import render_to_string
from django.utils.cache import patch_cache_control, patch_vary_headers
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _

from django_distlock.concurrency.text import is_secret
from django_distlock.idempotency import decisions
from django_distlock.idempotency.records import CLAIMED, COMPLETED, Record, StoredResponse
from django_distlock.middleware import language_of_texts, text_language

from . import forms
from .requests import FIELD, address_of

if TYPE_CHECKING:
    from django_distlock.idempotency.handle import KeyedRequest

# RFC 9457: a URI reference that names the problem. The codes are listed in docs/idempotency/apis.md.
PROBLEM = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/#{}"
WAIT_PARAMETER = "_idempotency_wait"
WAIT_SALT = "django_distlock.idempotency.wait"
REFRESH = 2  # seconds


def problem(status: int, code: str, title: str, detail: str, retry_after: float | None = None) -> HttpResponse:
    """An error for a program; ``code`` is stable, the texts are not."""
    facts = {"type": PROBLEM.format(code), "title": title, "status": status, "detail": detail, "code": code}
    response = JsonResponse(facts, status=status, content_type="application/problem+json")
    response["Content-Language"] = text_language()
    if code == "missing_key":
        response["Link"] = f'<{PROBLEM.format("section-2.1")}>; rel="help"'
    return _never_stored(response, retry_after)


def page(
    request: HttpRequest, name: str, status: int, retry_after: float | None = None, **context: Any
) -> HttpResponse:
    """A page for a person, from the template ``django_distlock/idempotency/<name>.html``."""
    context["language"] = language_of_texts()
    text = render_to_string(f"django_distlock/idempotency/{name}.html", context, request)
    # typed text may have lone surrogates: the client chooses the charset
    response = HttpResponse(text.encode("utf-8", "replace"), status=status)
    response["Content-Language"] = text_language()
    return _never_stored(response, retry_after)


def _never_stored(response: HttpResponse, retry_after: float | None = None) -> HttpResponse:
    response["Cache-Control"] = "no-store"
    if retry_after is not None:
        response["Retry-After"] = str(max(1, math.ceil(retry_after)))
    return response


def bad_key(request: HttpRequest, why: decisions.BadKey, *, html: bool) -> HttpResponse:
    detail = _(why.text) % why.values if why.values else _(why.text)
    if html:
        return page(request, "refused", why.status, detail=detail)
    return problem(why.status, why.code, _(why.title), detail)


def not_issued(request: HttpRequest, verified: forms.Verified) -> HttpResponse:
    """The answer to a form key that was not issued to this principal: nothing was done."""
    if verified is forms.Verified.INVENTED:
        return bad_key(
            request, decisions.BadKey(decisions.gettext_noop("The form was not made by this site.")), html=True
        )
    return page(request, "refused", 409, **_resubmission(request))


def session_changed(request: HttpRequest, key: str | None) -> HttpResponse:
    """The answer to a form whose CSRF token is that of the previous session; ``key`` if it is still valid."""
    facts = _resubmission(request)
    if key is not None and facts["action"]:
        facts["key_field"] = forms.field(key)
    shown = [(name, value) for name, value in _fields(request) if value and not is_secret(name)]
    response = page(request, "session_changed", 403, shown=shown, **facts)
    response["X-Frame-Options"] = "DENY"  # no other site may frame the button
    return response


def sent_before(request: HttpRequest, record: Record, *, changed: bool) -> HttpResponse:
    """The answer to such a form if it was already sent in the previous session."""
    running = record.state == CLAIMED and not record.expired
    facts = {"running": running, "unknown": record.state != COMPLETED, "changed": changed}
    response = page(request, "saved", 403, **facts, **_resubmission(request))
    response["X-Frame-Options"] = "DENY"
    return response


def in_flight(attempt: KeyedRequest) -> HttpResponse:
    if not attempt.html:
        detail = _("A request with this idempotency key is still being worked on. Ask again in a moment.")
        return problem(409, "in_flight", _("Still working"), detail, retry_after=1)
    return working(attempt.request, waiting_url(attempt))


def working(request: HttpRequest, url: str) -> HttpResponse:
    """The page that reloads until there is an answer, without a script."""
    response = page(request, "working", 409, REFRESH, url=url, seconds=REFRESH)
    response["Refresh"] = f"{REFRESH}; url={url}"
    return response


def wait_salt(request: HttpRequest) -> str:
    """The salt ties the outcome to the path of the request: another view may have other permissions."""
    return f"{WAIT_SALT}:{request.path}"


def waiting_url(attempt: KeyedRequest) -> str:
    """The address that shows the outcome, to the same principal only."""
    claim, method = attempt.claim, attempt.request.method or ""
    facts = {"scope": claim.scope, "mark": attempt.mark, "alias": attempt.alias or "", "method": method}
    facts |= {"fingerprint": claim.fingerprint} | ({"replays": "1"} if attempt.replays else {})
    token = signing.dumps(facts, salt=wait_salt(attempt.request))
    return address_of(attempt.request, urlencode({WAIT_PARAMETER: token}))


def mismatch(attempt: KeyedRequest, answer: StoredResponse | None, *, running: bool = False) -> HttpResponse:
    """The answer to other data with the same key. ``running``: the first request has not ended, and may fail."""
    if not attempt.html:
        detail = _("This idempotency key belongs to an earlier request with other data. Take a new key.")
        return problem(422, "mismatch", _("The request has changed"), detail)
    location = answer.location if answer else None
    again = _resubmission(attempt.request)
    return page(attempt.request, "saved", 422, location=location, changed=True, running=running, **again)


def tombstone(attempt: KeyedRequest, answer: StoredResponse | None, *, withheld: bool = False) -> HttpResponse:
    """The answer if the request was carried out and its answer is not stored, or not for this client."""
    if answer is not None and answer.location:
        return _again(
            attempt.request, StoredResponse(status=303, headers=answer.headers, body=b"", messages=answer.messages)
        )
    if not attempt.html:
        detail = _("This request has been carried out. Its answer was not kept.")
        if withheld:
            detail = _("This request has been carried out. Its answer is not repeated to an unchecked credential.")
        return problem(409, "already_completed", _("Already done"), detail)
    return page(attempt.request, "saved", 409, changed=False, **_resubmission(attempt.request))


def held(attempt: KeyedRequest) -> HttpResponse:
    """The answer if the first request broke off and its effect is unknown."""
    detail = _("The first request with this idempotency key broke off. Whether it has acted is not known.")
    if not attempt.html:
        return problem(409, "outcome_unknown", _("Outcome unknown"), detail)
    return page(attempt.request, "saved", 409, unknown=True, **_resubmission(attempt.request))


def too_many_keys(attempt: KeyedRequest, seconds: float) -> HttpResponse:
    """The answer to a key beyond the quota; ``seconds`` until the next key of the principal ends."""
    title = _("Too many requests")
    detail = _("There are too many idempotency keys of this client that still live. Nothing was done.")
    return _later(attempt.request, attempt.html, 429, "too_many_keys", title, detail, seconds)


def store_down(request: HttpRequest, *, html: bool) -> HttpResponse:
    title = _("Please try again in a moment")
    detail = _("The request was not carried out: it could not be made sure that this happens only once.")
    return _later(request, html, 503, "store_unavailable", title, detail, 5)


def _later(
    request: HttpRequest, html: bool, status: int, code: str, title: str, detail: str, retry_after: float
) -> HttpResponse:
    if html:
        return page(request, "refused", status, retry_after, title=title, detail=detail)
    return problem(status, code, title, detail, retry_after)


def _resubmission(request: HttpRequest) -> dict[str, Any]:
    """What the page needs to send the same data with a new key; no action if they have files or secrets."""
    fields = _fields(request)
    if request.FILES or request.method != "POST" or any(is_secret(name) for name, _value in fields):
        return {"action": None}
    return {
        "action": address_of(request),
        "fields": fields,
        "key_field": forms.hidden_field(request, [request.path]),
    }


def _fields(request: HttpRequest) -> list[tuple[str, str]]:
    """The fields of the form, without the key and the CSRF token."""
    return [
        (name, value)
        for name, values in request.POST.lists()
        for value in values
        if name not in (FIELD, "csrfmiddlewaretoken")
    ]


def replay(request: HttpRequest, answer: StoredResponse) -> HttpResponse | None:
    """The stored answer with the same status, headers and body; None if this client does not accept its encoding."""
    encoding = answer.header("content-encoding")
    if encoding is None or decisions.accepts(request.headers.get("Accept-Encoding", ""), encoding):
        return _again(request, answer)
    if encoding.strip().lower() != "gzip":
        return None
    try:
        body = gzip.decompress(answer.body or b"")
    except (OSError, EOFError, zlib.error):  # the header says gzip, and the body is not
        return None
    headers = tuple((name, value) for name, value in answer.headers if name.lower() != "content-encoding")
    return _again(request, replace(answer, headers=headers, body=body))


def _again(request: HttpRequest, answer: StoredResponse) -> HttpResponse:
    response = HttpResponse(answer.body or b"", status=answer.status)
    del response["Content-Type"]
    for name, value in answer.headers:
        response[name] = value
    if 300 <= answer.status < 400 and answer.location:
        # the attribute of Django's redirects, which the test client follows
        response.url = answer.location  # type: ignore[attr-defined]
    if response.has_header("Content-Encoding"):
        patch_vary_headers(response, ["Accept-Encoding"])
    for name, value in answer.marks.items():
        setattr(response, name, value)
    response["Idempotency-Replayed"] = "true"
    show_again(request, answer)
    return _never_stored(response)


def show_again(request: HttpRequest, answer: StoredResponse) -> None:
    """Add the messages of the first answer again, except those that are still queued."""
    storage: Any = get_messages(request)
    if not answer.messages or not hasattr(storage, "add"):
        return
    waiting = [(message.level, str(message.message)) for message in storage._loaded_messages]
    for level, text, tags, safe in answer.messages:
        if (level, text) not in waiting:
            storage.add(level, mark_safe(text) if safe else text, tags)  # noqa: S308 - it was safe when it was stored


def mark_as_private(response: HttpResponseBase) -> None:
    """Keep a page with a key out of shared caches: it is for one visitor, once."""
    patch_vary_headers(response, ["Cookie"])
    if "no-store" not in response.get("Cache-Control", ""):
        patch_cache_control(response, private=True)
