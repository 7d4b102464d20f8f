"""The two addresses that the script asks: ``beat`` for all forms of a page, and ``release`` when the page goes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.core.exceptions import BadRequest as DjangoBadRequest
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import DatabaseError
from django.http import HttpResponse, QueryDict
from django.http.multipartparser import MultiPartParserError
from django.middleware.csrf import get_token
from django.views.decorators.csrf import csrf_exempt, csrf_protect

from django_distlock import BackendUnavailable
from django_distlock.editing.conf import config
from django_distlock.http.bodies import BadRequest, body_of, json_object, private, private_json
from django_distlock.http.transactions import outside_transactions
from django_distlock.http.visitors import leave_session_alone, visitor_of
from django_distlock.storage.values import ID

from .actions import MOST_ITEMS, Beat, Item, release

if TYPE_CHECKING:
    from django.http import HttpRequest

logger = logging.getLogger("django_distlock.editing")
# Bytes. A signed field has some 500, more with many fields.
LONGEST_BODY = 256 * 1024


@outside_transactions
@csrf_protect
def beat_view(request: HttpRequest) -> HttpResponse:
    """``POST``: the items of the page, see :mod:`.actions`. ``GET``: a CSRF token, after a log-in in another tab."""
    if request.method in ("GET", "HEAD"):
        return private_json({"csrf": get_token(request)})
    if request.method != "POST":
        return private_json({"reason": "method"}, 405)
    session_ends_in = leave_session_alone(request)
    try:
        tab, items = _parsed(body_of(request, LONGEST_BODY))
    except BadRequest as error:
        return private_json({"reason": "request", "detail": str(error)}, 400)
    except RequestDataTooBig:
        return private_json({"reason": "too_large"}, 413)
    settings = config()
    visitor = visitor_of(request, settings.label_of)
    beat = Beat(request, visitor, settings, tab)
    try:
        answers = beat.answers(items)
    except (DatabaseError, BackendUnavailable):
        # for the script this is a request that was lost: the save decides
        logger.warning("The edit locks cannot be read or written.", exc_info=True)
        return private_json({"reason": "database"}, 503)
    if beat.foreign and not visitor.logged_in:
        return private_json({"reason": "logged_out"}, 401)
    return private_json({"items": answers, "beat": settings.beat, "session_ends_in": session_ends_in, "csrf": None})


@outside_transactions
@csrf_exempt
def release_view(request: HttpRequest) -> HttpResponse:
    """Give leases back. Always 204: the page is gone, and a stranger learns nothing.

    No CSRF token: the id of the lease is a secret of its tab, and works after a log-out as well.
    """
    leave_session_alone(request)
    try:
        texts, leases, reserve = _released(request)
        release(texts, leases, reserve=reserve)
    except (BadRequest, SuspiciousOperation, DjangoBadRequest, MultiPartParserError):
        pass
    except (DatabaseError, BackendUnavailable):
        logger.warning("An edit lock cannot be given back; it will expire.", exc_info=True)
    return private(HttpResponse(status=204))


# LoginRequiredMiddleware: a redirect to the log-in page would tell the script nothing
for _view in (beat_view, release_view):
    _view.login_required = False  # type: ignore[attr-defined]


def _parsed(body: bytes) -> tuple[str, list[Item]]:
    found = json_object(body)
    tab, items = found.get("tab"), found.get("items")
    if not isinstance(tab, str) or not ID.fullmatch(tab):
        raise BadRequest("tab is an id of 8 to 64 characters.")
    if not isinstance(items, list) or len(items) > MOST_ITEMS:
        raise BadRequest(f"items is a list of at most {MOST_ITEMS}.")
    return tab, [Item.of(item) for item in items]


def _released(request: HttpRequest) -> tuple[list[str], list[str], bool]:
    body = body_of(request, LONGEST_BODY)
    if request.content_type == "application/json":
        found = json_object(body)
        lists = [_texts(found.get(name)) for name in ("grant", "lease")]
        return lists[0], lists[1], str(found.get("reserve") or "") == "1"
    form = QueryDict(body, encoding="utf-8") if request.content_type != "multipart/form-data" else request.POST
    return form.getlist("grant"), form.getlist("lease"), form.get("reserve") == "1"


def _texts(value: Any) -> list[str]:
    given = value if isinstance(value, list) else [value]
    return [text for text in given if isinstance(text, str)]
