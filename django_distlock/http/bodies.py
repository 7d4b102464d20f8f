"""Bodies of limited length, JSON in and out, and answers that no cache keeps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from django.core.exceptions import RequestDataTooBig
from django.http import JsonResponse, UnreadablePostError
from django.http.request import RawPostDataException

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse
    from django.http.response import HttpResponseBase

R = TypeVar("R", bound="HttpResponseBase")


class BadRequest(ValueError):
    """The request is not one of the script."""


def body_of(request: HttpRequest, longest: int) -> bytes:
    """The body. RequestDataTooBig if it has more than ``longest`` bytes.

    BadRequest if the client has gone, or has sent a form with files: the CSRF check reads that, and it is kept nowhere.
    """
    refuse_too_long(request, longest)
    try:
        body = request.body
    except (UnreadablePostError, RawPostDataException) as error:
        raise BadRequest("The body could not be read.") from error
    if len(body) > longest:
        raise RequestDataTooBig
    return body


def refuse_too_long(request: HttpRequest, longest: int) -> None:
    """Raise RequestDataTooBig if the client announces more than ``longest`` bytes."""
    try:
        length = int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        length = 0
    if length > longest:
        raise RequestDataTooBig


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. BadRequest if it is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest("The body is not JSON.") from error
    if not isinstance(found, dict):
        raise BadRequest("The body is not an object.")
    return found


def private_json(facts: dict[str, Any], status: int = 200) -> HttpResponse:
    """An answer in JSON that no cache keeps."""
    return private(JsonResponse(facts, status=status))


def private(response: R) -> R:
    """Let no cache keep the response, and no page of another site embed it."""
    response["Cache-Control"] = "no-store"
    response["Cross-Origin-Resource-Policy"] = "same-origin"
    return response
