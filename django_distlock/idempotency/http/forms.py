"""The key in a form: issued with the page, signed, and good for one principal and one action only."""

from __future__ import annotations

import secrets
from enum import Enum
from typing import TYPE_CHECKING

from django.core import signing
from django.core.exceptions import SynchronousOnlyOperation
from django.middleware.csrf import get_token
from django.utils.html import format_html

from .requests import FIELD, principal_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.http import HttpRequest
    from django.utils.safestring import SafeString

SALT = "django_distlock.idempotency.form"
MOST_ACTIONS = 20
LONGEST = 1024  # of a key with its signatures: one for each action that the form has


class Verified(Enum):
    """What a key of a form is worth."""

    GOOD = "issued to this principal for this action"
    FOREIGN = "issued, but to somebody else (a log-in since, a cached page), or for another address"
    INVENTED = "never issued"


def issue(request: HttpRequest, actions: Iterable[str] = ()) -> str:
    """A fresh key for whoever asks, for a form that posts to one of ``actions`` (paths); without any to this page's own
    address. ValueError for more than twenty."""
    get_token(request)  # a browser without a session is known by its CSRF cookie, which it has from now on
    try:
        principal = _principal(request)
    except SynchronousOnlyOperation as error:
        raise SynchronousOnlyOperation(
            "{% idempotency_key %} has to know who is logged in: `await request.auser()` before you render the page, "
            "or render it in a thread."
        ) from error
    request.idempotency_key_issued = True  # type: ignore[attr-defined]
    # cache_page and the cache middleware: this page is for one person and once
    request._cache_update_cache = False  # type: ignore[attr-defined]
    number = secrets.token_urlsafe(16)
    paths = [path.partition("?")[0].partition("#")[0] or request.path for path in actions] or [request.path]
    if len(paths) > MOST_ACTIONS:
        raise ValueError(f"A form can have {MOST_ACTIONS} addresses, not {len(paths)}.")
    issued = _signature("issued", number)
    return ".".join([number, issued, *(_signature("form", number, principal, path) for path in paths)])


def verify(request: HttpRequest, value: str, principal: str) -> Verified:
    """What ``value`` is worth for this request of ``principal``."""
    number, *signatures = value[: LONGEST + 1].split(".") if len(value) <= LONGEST else ("",)
    if len(signatures) < 2 or not _signed(signatures[0], "issued", number):
        return Verified.INVENTED
    if any(_signed(signature, "form", number, principal, request.path) for signature in signatures[1:]):
        return Verified.GOOD
    return Verified.FOREIGN


def hidden_field(request: HttpRequest, actions: Iterable[str] = ()) -> SafeString:
    return field(issue(request, actions))


def field(key: str) -> SafeString:
    # autocomplete: a browser that restores a page with its fields would restore a key that is used up
    return format_html('<input type="hidden" name="{}" value="{}" autocomplete="off">', FIELD, key)


def _principal(request: HttpRequest) -> str:
    cached = getattr(request, "_acached_user", None)
    if cached is not None and not hasattr(request, "_cached_user"):
        request.user = cached
    return principal_of(request).text


def _signer() -> signing.Signer:
    return signing.Signer(salt=SALT, sep="/")


def _text(parts: Iterable[str]) -> str:
    return "".join(f"{len(part)}:{part}" for part in parts)


def _signature(*parts: str) -> str:
    return _signer().signature(_text(parts))[:43]


def _signed(signature: str, *parts: str) -> bool:
    """By the key of today, or by one of SECRET_KEY_FALLBACKS."""
    try:
        _signer().unsign(f"{_text(parts)}/{signature}")
    except signing.BadSignature:
        return False
    return True
