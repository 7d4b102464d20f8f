"""The answers that are given instead of the view's: problem+json (RFC 9457) for programs, pages for people."""

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
from django.utils.safestring import SafeData, mark_safe
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from django_distlock.idempotency import decisions
from django_distlock.idempotency.records import CLAIMED, COMPLETED, Answer, Record
from django_distlock.middleware import language_of_texts, text_language

from . import forms
from .requests import address_of
from .secret_names import is_secret

if TYPE_CHECKING:
    from django.contrib.messages.storage.base import Message

    from django_distlock.idempotency.job import Job

# RFC 9457: an URI reference that names the problem. The codes are listed in docs/idempotency/apis.md.
PROBLEM = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/#{}"
WAIT_PARAMETER = "_idempotency_wait"
WAIT_SALT = "django_distlock.idempotency.wait"
REFRESH = 2  # seconds
# What a view's decorators write on its response for the middleware that sets X-Frame-Options and
# Content-Security-Policy (Django 6).
MARKS = ("xframe_options_exempt", "_csp_config", "_csp_ro_config")


def problem(status: int, code: str, title: str, detail: str, retry_after: float | None = None) -> HttpResponse:
    """An error for a program; ``code`` is what it may rely on."""
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
    # what a client has typed may have lone surrogates: its charset is what it says
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
    return problem(why.status, why.code, _("This idempotency key cannot be used"), detail)


def missing_key(request: HttpRequest, *, html: bool) -> HttpResponse:
    detail = _("This request needs an idempotency key, in the header Idempotency-Key or from the form.")
    if html:
        return page(request, "refused", 400, detail=detail)
    return problem(400, "missing_key", _("The idempotency key is missing"), detail)


def unissued(request: HttpRequest, verified: forms.Verified) -> HttpResponse:
    """For the key of a form that was not issued to whoever sends it: nothing has been done."""
    if verified is forms.Verified.INVENTED:
        return bad_key(
            request, decisions.BadKey(decisions.gettext_noop("The form was not made by this site.")), html=True
        )
    return page(request, "refused", 409, **_resubmission(request))


def session_changed(request: HttpRequest, key: str | None) -> HttpResponse:
    """For a form of this visitor whose CSRF token is that of the session before; ``key`` if it is still good."""
    facts = _resubmission(request)
    if key is not None and facts["action"]:
        facts["key_field"] = forms.field(key)
    shown = [(name, value) for name, value in _fields(request) if value and not is_secret(name)]
    response = page(request, "session_changed", 403, shown=shown, **facts)
    response["X-Frame-Options"] = "DENY"  # a button that must not be pressed in somebody else's page
    return response


def sent_before(request: HttpRequest, record: Record, *, changed: bool) -> HttpResponse:
    """For such a form that has been sent before, under the token of that session."""
    running = record.state == CLAIMED and not record.expired
    facts = {"running": running, "unknown": record.state != COMPLETED, "changed": changed}
    response = page(request, "saved", 403, **facts, **_resubmission(request))
    response["X-Frame-Options"] = "DENY"
    return response


def in_flight(job: Job) -> HttpResponse:
    if not job.html:
        detail = _("A request with this idempotency key is still being worked on. Ask again in a moment.")
        return problem(409, "in_flight", _("Still working"), detail, retry_after=1)
    return working(job.request, waiting_url(job))


def working(request: HttpRequest, url: str) -> HttpResponse:
    """The page that loads itself anew until there is an answer; without a script."""
    response = page(request, "working", 409, REFRESH, url=url, seconds=REFRESH)
    response["Refresh"] = f"{REFRESH}; url={url}"
    return response


def wait_salt(request: HttpRequest) -> str:
    """The outcome can be looked at where the request was sent, and nowhere else: other checks may stand elsewhere."""
    return f"{WAIT_SALT}:{request.path}"


def waiting_url(job: Job) -> str:
    """Where the outcome can be looked at, by the same principal only."""
    facts = {"scope": job.scope, "mark": job.mark, "alias": job.alias or "", "fingerprint": job.fingerprint}
    facts |= {"method": job.request.method or ""} | ({"replays": "1"} if job.replays else {})
    return address_of(job.request, urlencode({WAIT_PARAMETER: signing.dumps(facts, salt=wait_salt(job.request))}))


def mismatch(job: Job, answer: Answer | None, *, running: bool = False) -> HttpResponse:
    """Other data with the same key; ``running``: the first request still is, and may yet fail."""
    if not job.html:
        detail = _("This idempotency key belongs to an earlier request with other data. Take a new key.")
        return problem(422, "mismatch", _("The request has changed"), detail)
    location = answer.location if answer else None
    again = _resubmission(job.request)
    return page(job.request, "saved", 422, location=location, changed=True, running=running, **again)


def tombstone(job: Job, answer: Answer | None, *, withheld: bool = False) -> HttpResponse:
    """It has been done, and the answer is not there any more, or not for this client: never a second run."""
    if answer is not None and answer.location:
        return _again(job.request, Answer(status=303, headers=answer.headers, body=b"", messages=answer.messages))
    if not job.html:
        detail = _("This request has been carried out. Its answer was not kept.")
        if withheld:
            detail = _("This request has been carried out. Its answer is not repeated to an unchecked credential.")
        return problem(409, "already_completed", _("Already done"), detail)
    return page(job.request, "saved", 409, changed=False, **_resubmission(job.request))


def held(job: Job) -> HttpResponse:
    """The first request died in the midst of it, and nobody knows what it has done."""
    detail = _("The first request with this idempotency key broke off. Whether it has acted is not known.")
    if not job.html:
        return problem(409, "outcome_unknown", _("Outcome unknown"), detail)
    return page(job.request, "saved", 409, unknown=True, **_resubmission(job.request))


def too_many_keys(job: Job, seconds: float) -> HttpResponse:
    """For a key beyond the quota of its principal; ``seconds``: until the next of the others ends."""
    title = _("Too many requests")
    detail = _("There are too many idempotency keys of this client that still live. Nothing was done.")
    if job.html:
        return page(job.request, "refused", 429, seconds, title=title, detail=detail)
    return problem(429, "too_many_keys", title, detail, retry_after=seconds)


def store_down(request: HttpRequest, *, html: bool) -> HttpResponse:
    title = _("Please try again in a moment")
    detail = _("The request was not carried out: it could not be made sure that this happens only once.")
    if html:
        return page(request, "refused", 503, 5, title=title, detail=detail)
    return problem(503, "store_unavailable", title, detail, retry_after=5)


def _resubmission(request: HttpRequest) -> dict[str, Any]:
    """What the page needs to send the same data again under a fresh key; nothing if it has files or secrets."""
    fields = _fields(request)
    if request.FILES or request.method != "POST" or any(is_secret(name) for name, _value in fields):
        return {"action": None}
    return {
        "action": address_of(request),
        "fields": fields,
        "key_field": forms.hidden_field(request, [request.path]),
    }


def _fields(request: HttpRequest) -> list[tuple[str, str]]:
    """The fields that the person has filled in, and those of the page."""
    return [
        (name, value)
        for name, values in request.POST.lists()
        for value in values
        if name not in (forms.FIELD, "csrfmiddlewaretoken")
    ]


def replay(request: HttpRequest, answer: Answer) -> HttpResponse | None:
    """The stored answer: same status, headers and body. None if it is compressed in a way that this client does not
    take."""
    encoding = _header(answer, "content-encoding")
    if encoding is None or decisions.accepts(request.headers.get("Accept-Encoding", ""), encoding):
        return _again(request, answer)
    if encoding.strip().lower() != "gzip":
        return None
    try:
        body = gzip.decompress(answer.body or b"")
    except (OSError, EOFError, zlib.error):  # the view has called something gzip that is not
        return None
    headers = tuple((name, value) for name, value in answer.headers if name.lower() != "content-encoding")
    return _again(request, replace(answer, headers=headers, body=body))


def _header(answer: Answer, wanted: str) -> str | None:
    return next((value for name, value in answer.headers if name.lower() == wanted), None)


def _again(request: HttpRequest, answer: Answer) -> HttpResponse:
    response = HttpResponse(answer.body or b"", status=answer.status)
    del response["Content-Type"]
    for name, value in answer.headers:
        response[name] = value
    if 300 <= answer.status < 400 and answer.location:
        # as a redirect of Django's has it: the test client follows that
        response.url = answer.location  # type: ignore[attr-defined]
    if response.has_header("Content-Encoding"):
        patch_vary_headers(response, ["Accept-Encoding"])
    for name, value in answer.marks.items():
        setattr(response, name, value)
    response["Idempotency-Replayed"] = "true"
    show_again(request, answer)
    return _never_stored(response)


def show_again(request: HttpRequest, answer: Answer) -> None:
    """Add the messages of the first answer again, except those that still wait to be shown."""
    storage: Any = get_messages(request)
    if not answer.messages or not hasattr(storage, "add"):
        return
    waiting = [(message.level, str(message.message)) for message in storage._loaded_messages]
    for level, text, tags, safe in answer.messages:
        if (level, text) not in waiting:
            storage.add(level, mark_safe(text) if safe else text, tags)  # noqa: S308 - it was safe when it was stored


def messages_of(request: HttpRequest) -> list[tuple[int, str, str, bool]]:
    """The messages that this request has added and nobody has shown yet."""
    storage: Any = get_messages(request)
    queued: list[Message] = [] if getattr(storage, "used", False) else getattr(storage, "_queued_messages", [])
    return [(m.level, str(m.message), str(m.extra_tags or ""), isinstance(m.message, SafeData)) for m in queued]


def answer_of(request: HttpRequest, response: HttpResponseBase, max_body: int) -> Answer:
    """What is kept of a response. Not its body as long as it is not rendered, nor if it is streamed or too large."""
    whole = not response.streaming and getattr(response, "is_rendered", True)
    body = response.content if whole and isinstance(response, HttpResponse) else None
    headers = list(response.items())
    if hasattr(request, "LANGUAGE_CODE") and not response.has_header("Content-Language") and (said := get_language()):
        # LocaleMiddleware writes it after us, by the language of whoever asks
        headers.append(("Content-Language", said))
    marks = {name: value for name in MARKS if (value := getattr(response, name, None)) is not None}
    return decisions.answer_of(response.status_code, headers, body, messages_of(request), max_body, marks)


def mark_as_private(request: HttpRequest, response: HttpResponseBase) -> None:
    """A page with a key is for one person and once."""
    if getattr(request, "idempotency_key_issued", False):
        patch_vary_headers(response, ["Cookie"])
        if "no-store" not in response.get("Cache-Control", ""):
            patch_cache_control(response, private=True)
