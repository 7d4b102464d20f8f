"""What a request says: its key, its principal, and the data that makes it the same request as an earlier one.

The data are the fields of a form, the members of JSON, else the bytes of the body. The view still gets the whole body:
a stream is copied to a temporary file, and the view reads that.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from dataclasses import dataclass
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl

from django.core.exceptions import SuspiciousOperation
from django.utils.encoding import escape_uri_path, iri_to_uri
from django.utils.http import escape_leading_slashes

from django_distlock.idempotency import conf, decisions
from django_distlock.idempotency.decisions import BadKey, gettext_noop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from django.http import HttpRequest, QueryDict

    from django_distlock.idempotency.conf import Options

HEADER = "HTTP_IDEMPOTENCY_KEY"  # in META: cheaper than request.headers
FIELD = "_idempotency_key"  # of a form
MULTIPART = "multipart/form-data"
FORM_TYPES = ("application/x-www-form-urlencoded", MULTIPART)
CHUNK = 64 * 1024
Source = Literal["form", "header", "callable"]


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request.

    ``text`` is only hashed. It begins with its kind, so that no header that a client makes up equals the number of a
    user. ``label`` is for people.
    """

    kind: Literal["user", "credential", "browser", "anonymous"]
    text: str
    label: str


def find_key(request: HttpRequest, options: Options) -> tuple[Source, str] | None:
    """The source and the key: from the ``key`` callable of the view, the form, or the header. :exc:`BadKey`."""
    if options.key is not None:
        found = options.key(request)
        return None if found is None else ("callable", decisions.validate_key(found))
    field = _form_field(request)
    if field is not None:
        return "form", field
    raw = request.META.get(HEADER)
    return None if raw is None else ("header", decisions.parse_header(raw))


def may_have_key(request: HttpRequest) -> bool:
    """Has the request the header, or is it a form, which may have the field?"""
    return HEADER in request.META or request.content_type in FORM_TYPES


def _form_field(request: HttpRequest) -> str | None:
    if request.content_type not in FORM_TYPES or not (request.method == "POST" or hasattr(request, "_post")):
        return None
    view = getattr(request.resolver_match, "func", None)
    if getattr(view, "csrf_exempt", False) and not is_parsed(request):
        # a view without CSRF may read the stream, or choose the upload handlers, itself
        return None
    values = form_fields(request).getlist(FIELD)
    if len(set(values)) > 1:
        raise BadKey(gettext_noop("The form has more than one key."))
    return values[0] if values else None


def form_fields(request: HttpRequest) -> QueryDict:
    """``request.POST``. :exc:`BadKey` if reading it would be a server error."""
    try:
        return request.POST
    except (LookupError, ValueError, OSError) as error:  # wrong charset, wrong length, client disconnected
        raise BadKey(gettext_noop("The form cannot be read.")) from error


def principal_of(request: HttpRequest) -> Principal:
    """The sender of a request: the user, else the credential in ``Authorization``, else the browser.

    The secret of its CSRF cookie, which every form needs, identifies a browser. The session key does not: a request may
    change it, and if the answer of that request is lost, the retry would come from another principal.
    """
    user: Any = getattr(request, "user", None)
    # users of the REST framework are of any class; those without a primary key are not distinguished
    if is_authenticated(user) and (number := getattr(user, "pk", None)) is not None:
        return Principal("user", f"user:{_kind(user)}:{number}", user_label(user))
    if (credential := request.headers.get("Authorization")) and conf.config().credentials:
        return Principal("credential", f"credential:{credential}", "credential")
    if secret := request.META.get("CSRF_COOKIE"):
        return Principal("browser", f"csrf:{secret}", "browser")
    session: Any = getattr(request, "session", None)
    if session is not None and session.session_key:
        return Principal("browser", f"session:{session.session_key}", "browser")
    return Principal("anonymous", "", "anonymous")


def user_label(user: Any) -> str:
    """The label of a user in the list of keys: "user 5", or with its class if that is not AUTH_USER_MODEL."""
    kind = _kind(user)
    return f"{'user' if kind == conf.user_model() else kind} {user.pk}"


def is_authenticated(user: Any) -> bool:
    return user is not None and bool(user.is_authenticated)


def _kind(user: Any) -> str:
    """What makes the primary key unique: the table, also for a proxy model; else the class."""
    model = getattr(user, "_meta", None)
    if model is not None:
        return str(model.concrete_model._meta.label_lower)
    return f"{user.__class__.__module__}.{user.__class__.__qualname__}"


def route_of(request: HttpRequest) -> str:
    """The URL pattern of the request."""
    match = request.resolver_match
    return request.path if match is None else match.route or "/"


def tenant_of(request: HttpRequest, options: Options) -> str:
    """What separates the keys of the sites of one project: the host, or the result of ``scope``."""
    if options.scope is None:
        return request.get_host().lower()
    found = options.scope(request)
    if not isinstance(found, str):
        raise TypeError(f"scope must return a str, not {type(found).__name__}.")
    return found


def fingerprint_of(request: HttpRequest, site_key: str, options: Options) -> str:
    """The hash that is equal for two sendings of the same request."""
    # names in any order, the values of one name in theirs: QueryDict.get returns the last one
    query = sorted(_query_of(request), key=itemgetter(0))
    address = (request.method or "", route_of(request), request.path, decisions.written(query))
    return decisions.keyed(site_key, "fingerprint", *address, *body_of(request, options))


def _query_of(request: HttpRequest) -> list[tuple[str, str]]:
    """The parameters of the address, byte for byte.

    ``request.GET`` would decode them by the charset of the Content-Type, which the client chooses.
    """
    return parse_qsl(request.META.get("QUERY_STRING", ""), keep_blank_values=True, encoding="latin-1")


def address_of(request: HttpRequest) -> str:
    """The address of the request, escaped for a page. Two slashes at its start would name another host."""
    query = iri_to_uri(request.META.get("QUERY_STRING", "")) or ""
    return escape_leading_slashes(escape_uri_path(request.path)) + (f"?{query}" if query else "")


def wants_page(request: HttpRequest, source: str | None) -> bool:
    """Is the answer for a person, and not for a program or a script of the page?"""
    if request.headers.get("HX-Request") or request.headers.get("X-Requested-With") == "XMLHttpRequest":
        return False
    return source == "form" or "text/html" in request.headers.get("Accept", "")


def body_of(request: HttpRequest, options: Options) -> Iterator[bytes]:
    """The bytes by which the body is compared.

    :exc:`BadKey` if it cannot be compared: the key would then get the same answer with other data.
    """
    if options.fingerprint is not None:
        own = options.fingerprint(request)
        if not isinstance(own, (str, bytes)):
            raise TypeError(f"fingerprint must return a str or bytes, not {type(own).__name__}.")
        yield own if isinstance(own, bytes) else own.encode("utf-8", "surrogatepass")
        return
    kind = request.content_type or ""
    # Django parses no multipart form whose length is not said
    if kind in FORM_TYPES and is_parsed(request) and not (kind == MULTIPART and not _said_length(request)):
        yield from _form(request, {*options.fingerprint_exclude, FIELD, "csrfmiddlewaretoken"})
        return
    yield _content_type(request)
    if hasattr(request, "_body") or may_be_read(request):
        raw = _bytes(lambda: request.body)
        is_json = kind == "application/json" or kind.endswith("+json")
        yield decisions.json_body(raw, options.fingerprint_exclude) if is_json else raw
        return
    stream = _rewindable(request)
    yield _digest(_pieces(request, stream))
    stream.seek(0)


def is_parsed(request: HttpRequest) -> bool:
    """Parse the form if the view allows it. Is it parsed now, even if its method was overridden since?"""
    if not hasattr(request, "_post") and request.method == "POST" and may_be_read(request):
        try:
            _ = request.POST
        except SuspiciousOperation:  # too many fields: the view need not read them
            return False
    return hasattr(request, "_post")


def may_be_read(request: HttpRequest) -> bool:
    """May the body be read into memory, from where the view reads it again?"""
    if getattr(request, "_read_started", False) or request.content_type == MULTIPART:
        return False
    limit, length = conf.settings.DATA_UPLOAD_MAX_MEMORY_SIZE, _length(request)
    return length is not None and length >= 0 and (limit is None or length <= limit)


def keep_readable(request: HttpRequest) -> None:
    """Read the body of a request with a key before other code parses it, after which it could not be compared."""
    if HEADER in request.META and may_be_read(request):
        _bytes(lambda: request.body)


def _bytes(read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except OSError as error:
        raise BadKey(gettext_noop("The body of the request could not be read.")) from error


def _said_length(request: HttpRequest) -> int | None:
    """The length of the body in the header; None if it is no number."""
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return None


def _length(request: HttpRequest) -> int | None:
    """The length of the body in bytes; None if the header is no number."""
    said = _said_length(request)
    stream: Any = getattr(request, "_stream", None)
    if said != 0 or stream is None or stream.closed or not stream.seekable():
        return said
    # a chunked body under ASGI: Django has written it to a file
    at = stream.tell()
    length = stream.seek(0, os.SEEK_END)
    stream.seek(at)
    return int(length)


def _content_type(request: HttpRequest) -> bytes:
    """The content type, since the same bytes of another type are other data. Without the boundary, which is random."""
    parameters = {name: value.lower() for name, value in (request.content_params or {}).items()}
    if request.content_type == MULTIPART:
        parameters.pop("boundary", None)
    if parameters.get("charset") in ("utf-8", "utf8"):
        del parameters["charset"]
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "")
    return decisions.written([request.content_type, sorted(parameters.items()), encoding])


def _form(request: HttpRequest, exclude: Collection[str]) -> Iterator[bytes]:
    """The fields of a form with the pressed button, and its files. The order of the values of one name counts."""
    yield decisions.written(sorted(pair for pair in request.POST.lists() if pair[0] not in exclude))
    for field, files in sorted(request.FILES.lists(), key=itemgetter(0)):
        for file in files if field not in exclude else ():
            kind = [file.content_type, sorted((getattr(file, "content_type_extra", None) or {}).items())]
            yield decisions.written([field, str(file.name), kind, file.size or 0, _digest(file.chunks())])
            file.seek(0)


def _digest(chunks: Iterable[bytes]) -> bytes:
    state = hashlib.blake2b(digest_size=32)
    for chunk in chunks:
        state.update(chunk)
    return state.digest()


def _pieces(request: HttpRequest, stream: IO[bytes]) -> Iterator[bytes]:
    """The bytes of a body; of a multipart form without its boundary, which is random: a retry has another one."""
    boundary = (request.content_params or {}).get("boundary") if request.content_type == MULTIPART else None
    if not boundary:
        yield from iter(lambda: stream.read(CHUNK), b"")
        return
    line, begins = f"--{boundary}".encode("utf-8", "surrogatepass"), True
    while piece := stream.readline(CHUNK):
        yield b"--" if begins and piece.startswith(line) else piece
        begins = piece.endswith(b"\n")


def _rewindable(request: HttpRequest) -> IO[bytes]:
    """The stream of the request, at its start.

    A stream that can be read only once (WSGI) is replaced by a temporary file with the same bytes.
    """
    stream: Any = getattr(request, "_stream", None)
    length, limit = _length(request), conf.config().max_upload
    if length is not None and length > limit:
        raise _too_large(limit)
    if stream is not None and not stream.closed and stream.seekable():
        stream.seek(0)
        return stream  # type: ignore[no-any-return]
    if stream is None or stream.closed or getattr(request, "_read_started", False):
        raise BadKey(
            gettext_noop(
                "The body has been read before it could be compared with that of an earlier request, so the key "
                "protects from nothing. The view can name what to compare: @idempotent(fingerprint=...)."
            ),
            code="body_unread",
        )
    return _spooled(request, stream, limit)


def _spooled(request: HttpRequest, stream: Any, limit: int) -> IO[bytes]:
    size, folder = conf.settings.FILE_UPLOAD_MAX_MEMORY_SIZE, conf.settings.FILE_UPLOAD_TEMP_DIR
    spool: Any = tempfile.SpooledTemporaryFile(size, dir=folder)  # noqa: SIM115 - closed with the request
    weakref.finalize(request, spool.close)  # a request that no handler closes
    closing = request.close

    def close() -> None:
        spool.close()
        closing()

    request.close = close  # type: ignore[method-assign]
    copied = 0
    while chunk := _bytes(lambda: stream.read(CHUNK)):
        copied += len(chunk)
        if copied > limit:
            raise _too_large(limit)
        spool.write(chunk)
    spool.seek(0)
    request._stream = spool
    return spool  # type: ignore[no-any-return]


def _too_large(limit: int) -> BadKey:
    return BadKey(
        gettext_noop(
            "The body is longer than the %d bytes that can be compared with those of an earlier request. Send it "
            "without an idempotency key."
        ),
        limit,
        status=413,
        code="body_too_large",
    )
