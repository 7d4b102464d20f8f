"""The answers that replace the view's: problem+json (RFC 9457) for programs, pages for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib.messages import get_messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.cache import patch_cache_control, patch_vary_headers
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _

from django_distlock.concurrency.text import is_secret
from django_distlock.http.answers import page, problem
from django_distlock.idempotency.decisions import BadKey, gettext_noop

from . import forms
from .requests import FIELD, address_of

if TYPE_CHECKING:
    from django_distlock.idempotency.handle import KeyedRequest
    from django_distlock.idempotency.records import StoredResponse

PAGE = "django_distlock/idempotency/page.html"
HELP = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"
REFRESH = 2  # seconds until the page "still working" sends its form again


class Answer(NamedTuple):
    """One row of the table: what a program is told, and what a person. An empty ``text`` goes to people only.

    A page with a ``button`` keeps the data that it sends again; one without it says ``text``, too.
    """

    code: str
    status: int
    title: str
    text: str
    page_text: str
    page_title: str = ""  # where it is another one
    button: str = ""  # sends the same data again
    no_button: str = ""  # where the page does not keep them
    retry_after: float = 0.0


OPEN_AGAIN = gettext_noop("What you sent has not been saved. Please open the form again.")
SUBMIT = gettext_noop("Submit as new")
FILL_IN = gettext_noop("To send it as something new, open the form again and fill it in.")
SAVE = gettext_noop("Save it now")
IN_FLIGHT = Answer(
    "in_flight",
    409,
    gettext_noop("Still working"),
    gettext_noop("A request with this idempotency key is still being worked on. Ask again in a moment."),
    gettext_noop("What you sent has arrived and is being worked on. There is no need to fill it in again."),
    button=gettext_noop("Look now"),
    no_button=gettext_noop(
        "To see what has become of it, go back and press the button once more. It is saved only once."
    ),
    retry_after=1.0,
)
MISMATCH = Answer(
    "mismatch",
    422,
    gettext_noop("The request has changed"),
    gettext_noop("This idempotency key belongs to an earlier request with other data. Take a new key."),
    gettext_noop("This form has been sent before, with other data. What it says now has not been saved."),
    gettext_noop("Already saved"),
    SUBMIT,
    FILL_IN,
)
MISMATCH_RUNNING = MISMATCH._replace(
    page_title=gettext_noop("Still being saved"),
    page_text=gettext_noop(
        "This form has been sent before, with other data, and that is still being worked on. What it says now has not "
        "been saved."
    ),
)
COMPLETED = Answer(
    "already_completed",
    409,
    gettext_noop("Already done"),
    gettext_noop("This request has been carried out. Its answer was not kept."),
    gettext_noop("This form has been sent before, and was saved then. It was not saved a second time."),
    gettext_noop("Already saved"),
    SUBMIT,
    FILL_IN,
)
WITHHELD = COMPLETED._replace(
    text=gettext_noop("This request has been carried out. Its answer is not repeated to an unchecked credential.")
)
UNKNOWN = Answer(
    "outcome_unknown",
    409,
    gettext_noop("Outcome unknown"),
    gettext_noop("The first request with this idempotency key broke off. Whether it has acted is not known."),
    gettext_noop(
        "Something went wrong while it was being saved. Please look whether it is there before you send it again."
    ),
    gettext_noop("Not known whether it was saved"),
    SUBMIT,
    FILL_IN,
)
TOO_MANY = Answer(
    "too_many_keys",
    429,
    gettext_noop("Too many requests"),
    gettext_noop("There are too many idempotency keys of this client that still live. Nothing was done."),
    OPEN_AGAIN,
)
STORE_DOWN = Answer(
    "store_unavailable",
    503,
    gettext_noop("Please try again in a moment"),
    gettext_noop("The request was not carried out: it could not be made sure that this happens only once."),
    OPEN_AGAIN,
    retry_after=5.0,
)
NOT_ISSUED = Answer(
    "not_issued",
    409,
    gettext_noop("Not saved"),
    "",
    gettext_noop(
        "You have logged in or out since this form was opened, or it was opened for another page. What you sent has "
        "not been saved yet."
    ),
    button=SAVE,
    no_button=FILL_IN,
)
SESSION_CHANGED = Answer(
    "session_changed",
    403,
    gettext_noop("Not saved yet"),
    "",
    gettext_noop(
        "You have logged in since this form was opened, perhaps in another tab. What you sent has not been saved."
    ),
    button=SAVE,
    no_button=gettext_noop(
        "It has a file, a password or something of that kind, which this page does not keep. Please copy what you "
        "need, open the form again and fill it in."
    ),
)


def given(
    answer: Answer, request: HttpRequest, html: bool, *, key: str | None = None, values: Any = (), **context: Any
) -> HttpResponse:
    """The answer. A page sends its data again with ``key``, else as something new. ``values`` are those of the text."""
    detail = _(answer.text) % values if values else answer.text and _(answer.text)
    if html:
        # gettext of an empty text would be the head of the catalog
        button, no_button = (text and _(text) for text in (answer.button, answer.no_button))
        told = {
            "title": _(answer.page_title or answer.title),
            "text": _(answer.page_text),
            "button": button,
            "no_button": no_button,
        }
        more = _again(request, key) if button else {"detail": detail}
        response = page(request, PAGE, answer.status, code=answer.code, **told, **{**more, **context})
    else:
        response = problem(answer.status, _(answer.title), detail, code=answer.code)
    if answer.retry_after:
        response["Retry-After"] = str(max(1, math.ceil(answer.retry_after)))
    return response


def bad_key(request: HttpRequest, why: BadKey, *, html: bool) -> HttpResponse:
    answer = Answer(why.code, why.status, why.title, why.text, OPEN_AGAIN, gettext_noop("Not saved"))
    response = given(answer, request, html, values=why.values)
    if why.code == "missing_key":
        response["Link"] = f'<{HELP}>; rel="help"'
    return response


def session_changed(request: HttpRequest, key: str) -> HttpResponse:
    """The answer to a form whose CSRF token is that of the previous session; its key is still valid."""
    shown = [(name, value) for name, value in _fields(request) if value and not is_secret(name)]
    response = given(SESSION_CHANGED, request, True, key=key, shown=shown)
    response["X-Frame-Options"] = "DENY"  # no other site may frame the button
    return response


def in_flight(attempt: KeyedRequest) -> HttpResponse:
    """The page asks again by sending the same form, so that everything that guards the view guards the outcome."""
    if not attempt.html:
        return given(IN_FLIGHT, attempt.request, False)
    key = attempt.request.POST.get(FIELD)
    context = {"seconds": REFRESH} if key else {"action": None}
    return given(IN_FLIGHT._replace(retry_after=REFRESH), attempt.request, True, key=key, **context)


def store_down(request: HttpRequest, *, html: bool) -> HttpResponse:
    return given(STORE_DOWN, request, html)


def _again(request: HttpRequest, key: str | None) -> dict[str, Any]:
    """What a page needs to send the same data again; no action if they have files or secrets."""
    fields = _fields(request)
    if request.FILES or request.method != "POST" or any(is_secret(name) for name, _value in fields):
        return {"action": None}
    hidden = forms.hidden_field(request) if key is None else forms.field(key)
    return {"action": address_of(request), "fields": fields, "key_field": hidden}


def _fields(request: HttpRequest) -> list[tuple[str, str]]:
    """The fields of the form, without the key and the CSRF token."""
    return [
        (name, value)
        for name, values in request.POST.lists()
        for value in values
        if name not in (FIELD, "csrfmiddlewaretoken")
    ]


def replay(request: HttpRequest, stored: StoredResponse) -> HttpResponse:
    """The stored answer with the same status, headers and body."""
    response = HttpResponse(stored.body or b"", status=stored.status)
    del response["Content-Type"]
    for name, value in stored.headers:
        response[name] = value
    if 300 <= stored.status < 400 and stored.location:
        # the attribute of Django's redirects, which the test client follows
        response.url = stored.location  # type: ignore[attr-defined]
    if response.has_header("Content-Encoding"):
        patch_vary_headers(response, ["Accept-Encoding"])
    response["Idempotency-Replayed"] = "true"
    response["Cache-Control"] = "no-store"
    _show_again(request, stored)
    return response


def _show_again(request: HttpRequest, stored: StoredResponse) -> None:
    """Add the messages of the first answer again, except those that are still queued."""
    storage: Any = get_messages(request)
    if not stored.messages or not hasattr(storage, "add"):
        return
    waiting = [(message.level, str(message.message)) for message in storage._loaded_messages]
    for level, text, tags, safe in stored.messages:
        if (level, text) not in waiting:
            storage.add(level, mark_safe(text) if safe else text, tags)  # noqa: S308 - it was safe when it was stored


def mark_as_private(response: HttpResponseBase) -> None:
    """Keep a page with a key out of shared caches: it is for one visitor, once."""
    patch_vary_headers(response, ["Cookie"])
    if "no-store" not in response.get("Cache-Control", ""):
        patch_cache_control(response, private=True)
