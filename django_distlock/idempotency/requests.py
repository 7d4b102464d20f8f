"""What a request says: its key, who asks, and what makes it the same as another one."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from django.core.exceptions import SuspiciousOperation

from . import conf, engine, forms
from .engine import BadKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.http import HttpRequest

    from .options import Options

HEADER = "HTTP_IDEMPOTENCY_KEY"  # in META, which costs less to ask than request.headers
Source = Literal["form", "header", "callable"]
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
JSON_TYPES = ("application/json",)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. ``text`` goes into hashes only, and begins with a word of its own for each kind: what a stranger writes
    into a header is nobody's number. ``label`` is for people."""

    kind: Literal["user", "credential", "browser", "anybody"]
    text: str
    label: str

    @property
    def known(self) -> bool:
        """Somebody says who he is: a user, or a credential that nobody has checked so far."""
        return self.kind in ("user", "credential")


def find_key(request: HttpRequest, options: Options, view: Any = None) -> tuple[Source, str] | None:
    """Where the key came from, and the key: of the view's own callable, of the form, of the header. :exc:`BadKey`."""
    if options.key is not None:
        found = options.key(request)
        return None if found is None else ("callable", engine.validate_key(found))
    field = _form_field(request, view)
    if field is not None:
        return "form", field
    raw = request.META.get(HEADER)
    return None if raw is None else ("header", engine.parse_header(raw))


def has_none(request: HttpRequest, options: Options) -> bool:
    """Can it be told at a glance that there is no key, and that none is needed? Most requests have none."""
    return (
        options.key is None
        and not options.required
        and HEADER not in request.META
        and request.content_type not in FORM_TYPES
    )


def _form_field(request: HttpRequest, view: Any) -> str | None:
    if request.content_type not in FORM_TYPES or not (request.method == "POST" or hasattr(request, "_post")):
        return None
    if getattr(view, "csrf_exempt", False) and not _is_parsed(request):
        # A view without CSRF may want to read the stream, or choose the upload handlers, itself.
        return None
    values = request.POST.getlist(forms.FIELD)
    if len(set(values)) > 1:
        raise BadKey("The form has more than one key.")
    return values[0] if values else None


def principal_of(request: HttpRequest) -> Principal:
    """Who asks: the user, else the credential in ``Authorization``, else this browser.

    A browser is known by the secret of its CSRF cookie, which every form has. Not by the session: its key may be
    changed by the very request whose answer got lost, and then the retry would come from somebody else.
    """
    user: Any = getattr(request, "user", None)
    # users of the REST framework are of any class; one without a number is like any other of his kind
    if is_authenticated(user) and (number := getattr(user, "pk", None)) is not None:
        return Principal("user", f"user:{_kind(user)}:{number}", user_label(number))
    if (credential := request.headers.get("Authorization")) and conf.config().credentials:
        return Principal("credential", f"credential:{credential}", "credential")
    if secret := request.META.get("CSRF_COOKIE"):
        return Principal("browser", browser_text(secret), "browser")
    session: Any = getattr(request, "session", None)
    if session is not None and session.session_key:
        return Principal("browser", f"session:{session.session_key}", "browser")
    return Principal("anybody", "", "anybody")


def browser_text(secret: str) -> str:
    """Of a browser that has this CSRF secret."""
    return f"csrf:{secret}"


def user_label(number: Any) -> str:
    """What the list of keys calls a user."""
    return f"user {number}"


def is_authenticated(user: Any) -> bool:
    return user is not None and bool(user.is_authenticated)


def _kind(user: Any) -> str:
    """Which numbers are his: those of a table, whatever proxy of its model, or those of a class."""
    model = getattr(user, "_meta", None)
    if model is not None:
        return str(model.concrete_model._meta.label_lower)
    return f"{user.__class__.__module__}.{user.__class__.__qualname__}"


def route_of(request: HttpRequest) -> tuple[str, dict[str, Any]]:
    """The pattern that the URL matched, and what it took from the URL."""
    match = request.resolver_match
    if match is None:
        return request.path, {}
    kwargs = {**match.kwargs, **{str(number): value for number, value in enumerate(match.args)}}
    return match.route or request.path, kwargs


def fingerprint_of(request: HttpRequest, site_key: str, options: Options) -> str:
    route, kwargs = route_of(request)
    query = [(name, value) for name, values in request.GET.lists() for value in values]
    return engine.fingerprint_of(
        site_key,
        method=request.method or "",
        route=route,
        kwargs=kwargs,
        query=query,
        body=_body(request, options),
    )


def _body(request: HttpRequest, options: Options) -> Iterator[bytes]:
    """The body in a form that is the same for the same data. That of a multipart form is never read as such: once it is
    parsed, ``request.body`` raises."""
    exclude = {*options.fingerprint_exclude, forms.FIELD, "csrfmiddlewaretoken"}
    kind = request.content_type or ""
    if kind in FORM_TYPES and _is_parsed(request):
        yield engine.form_body({name: list(values) for name, values in request.POST.lists()}, exclude)
        for field, files in request.FILES.lists():
            for file in files:
                if field not in exclude:
                    yield engine.file_part(field, str(file.name), file.size or 0, _digest(file))
        return
    if hasattr(request, "_body") or _may_be_read(request):
        raw = request.body
        is_json = kind in JSON_TYPES or kind.endswith("+json")
        yield engine.json_body(raw, options.fingerprint_exclude) if is_json else raw
        return
    # Somebody else reads the stream: all that is known is how long it is.
    yield f"unread:{_length(request)}".encode()


def _is_parsed(request: HttpRequest) -> bool:
    """Has a form been parsed, or could it be without harm? A method that was overridden does not matter."""
    if not hasattr(request, "_post") and request.method == "POST" and _may_be_read(request):
        try:
            _ = request.POST
        except SuspiciousOperation:  # more fields than are allowed: the view may not look at them
            return False
    return hasattr(request, "_post")


def _may_be_read(request: HttpRequest) -> bool:
    if getattr(request, "_read_started", False) or request.content_type == "multipart/form-data":
        return False
    limit, length = conf.longest_body(), _length(request)
    return limit is None or (length is not None and length <= limit)


def _length(request: HttpRequest) -> int | None:
    """Of the body, in bytes; None if it is said and is no number."""
    try:
        said = int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return None
    stream: Any = getattr(request, "_stream", None)
    if said or stream is None or not stream.seekable():
        return said
    # in chunks, under ASGI: it is in a file, however long
    at = stream.tell()
    length = stream.seek(0, os.SEEK_END)
    stream.seek(at)
    return int(length)


def _digest(file: Any) -> str:
    state = hashlib.blake2b(digest_size=32)
    for chunk in file.chunks():
        state.update(chunk)
    file.seek(0)
    return state.hexdigest()


def wants_page(request: HttpRequest, source: str | None) -> bool:
    """Is it a person who waits for the answer?"""
    if request.headers.get("HX-Request") or request.headers.get("X-Requested-With") == "XMLHttpRequest":
        return False
    return source == "form" or "text/html" in request.headers.get("Accept", "")
