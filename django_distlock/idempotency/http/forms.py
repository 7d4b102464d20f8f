"""The key in a form: issued with the page, signed, and valid for one principal and one action."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING
from urllib.parse import unquote

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
LONGEST = 1024  # characters of a key with its signatures, one for each action of the form


def issue(request: HttpRequest, actions: Iterable[str] = ()) -> str:
    """Issue a key for a form that the principal of ``request`` will post to one of ``actions``.

    Actions are paths; without any it is the address of this page. ValueError for more than twenty.
    """
    get_token(request)  # sets the CSRF cookie, which identifies a browser without a session
    try:
        principal = _principal(request)
    except SynchronousOnlyOperation as error:
        raise SynchronousOnlyOperation(
            "{% idempotency_key %} has to know who is logged in: `await request.auser()` before you render the page, "
            "or render it in a thread."
        ) from error
    request.idempotency_key_issued = True  # type: ignore[attr-defined]
    # cache_page and the cache middleware must not store this page: it is for one visitor, once
    request._cache_update_cache = False  # type: ignore[attr-defined]
    number = secrets.token_urlsafe(16)
    paths = [unquote(path.partition("?")[0].partition("#")[0]) or request.path for path in actions] or [request.path]
    if len(paths) > MOST_ACTIONS:
        raise ValueError(f"A form can have {MOST_ACTIONS} addresses, not {len(paths)}.")
    return ".".join([number, *(_signer().signature(_text(number, principal, path))[:43] for path in paths)])


def is_valid(request: HttpRequest, key: str, principal: str) -> bool:
    """Was the key issued to ``principal`` for the address of this request?

    If it was not, the form comes from this site all the same: the CSRF check has passed. The visitor has logged in or
    out since, the page was cached, or the key was made for another address.
    """
    if len(key) > LONGEST:
        return False
    number, *signatures = key.split(".")
    return any(_is_signed(signature, _text(number, principal, request.path)) for signature in signatures)


def number_of(key: str) -> str:
    """The key without its signatures."""
    return key.partition(".")[0]


def hidden_field(request: HttpRequest, actions: Iterable[str] = ()) -> SafeString:
    return field(issue(request, actions))


def field(key: str) -> SafeString:
    # autocomplete: a browser that restores the fields of a page would restore a used key
    return format_html('<input type="hidden" name="{}" value="{}" autocomplete="off">', FIELD, key)


def _principal(request: HttpRequest) -> str:
    cached = getattr(request, "_acached_user", None)
    if cached is not None and not hasattr(request, "_cached_user"):
        request.user = cached
    return principal_of(request).text


def _signer() -> signing.Signer:
    return signing.Signer(salt=SALT, sep="/")


def _text(*parts: str) -> str:
    return "".join(f"{len(part)}:{part}" for part in parts)


def _is_signed(signature: str, text: str) -> bool:
    """Is it the signature of the text, by SECRET_KEY or one of SECRET_KEY_FALLBACKS?"""
    try:
        _signer().unsign(f"{text}/{signature}")
    except signing.BadSignature:
        return False
    return True
