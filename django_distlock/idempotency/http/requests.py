"""What a request says: its key, who asks, and what makes it the same as another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl

from django.utils.encoding import escape_uri_path, iri_to_uri
from django.utils.http import escape_leading_slashes

from django_distlock.idempotency import conf, decisions
from django_distlock.idempotency.decisions import BadKey, gettext_noop

from . import forms
from .bodies import FORM_TYPES, body_of, is_parsed

if TYPE_CHECKING:
    from django.http import HttpRequest, QueryDict

    from django_distlock.idempotency.options import Options

HEADER = "HTTP_IDEMPOTENCY_KEY"  # in META, which costs less to ask than request.headers
Source = Literal["form", "header", "callable"]


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
        return None if found is None else ("callable", decisions.validate_key(found))
    field = _form_field(request, view)
    if field is not None:
        return "form", field
    raw = request.META.get(HEADER)
    return None if raw is None else ("header", decisions.parse_header(raw))


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
    if getattr(view, "csrf_exempt", False) and not is_parsed(request):
        # A view without CSRF may want to read the stream, or choose the upload handlers, itself.
        return None
    values = form_fields(request).getlist(forms.FIELD)
    if len(set(values)) > 1:
        raise BadKey(gettext_noop("The form has more than one key."))
    return values[0] if values else None


def form_fields(request: HttpRequest) -> QueryDict:
    """``request.POST``. :exc:`BadKey` where reading it would be a server error."""
    try:
        return request.POST
    except (LookupError, ValueError, OSError) as error:  # a charset or a length that is none, a client that has gone
        raise BadKey(gettext_noop("The form cannot be read.")) from error


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


def route_of(request: HttpRequest) -> str:
    """The pattern that the URL matched."""
    match = request.resolver_match
    return request.path if match is None else match.route or "/"


def tenant_of(request: HttpRequest, options: Options) -> str:
    """What separates the keys of the sites that one project serves: the host, or what ``scope`` returns."""
    scope = options.scope or conf.config().scope
    if scope is None:
        return request.get_host().lower()
    found = scope(request)
    if not isinstance(found, str):
        raise TypeError(f"scope must return a str, not {type(found).__name__}.")
    return found


def fingerprint_of(request: HttpRequest, site_key: str, options: Options) -> str:
    return decisions.fingerprint_of(
        site_key,
        method=request.method or "",
        route=route_of(request),
        path=request.path,
        query=query_of(request),
        body=body_of(request, options),
    )


def query_of(request: HttpRequest) -> list[tuple[str, str]]:
    """The parameters of the address, byte for byte. ``request.GET`` takes their charset from Content-Type, which names
    whatever the client likes."""
    return parse_qsl(request.META.get("QUERY_STRING", ""), keep_blank_values=True, encoding="latin-1")


def address_of(request: HttpRequest, query: str | None = None) -> str:
    """The address of the request for a page or a header. Two slashes at its beginning would name another host."""
    if query is None:
        query = iri_to_uri(request.META.get("QUERY_STRING", "")) or ""
    return escape_leading_slashes(escape_uri_path(request.path)) + (f"?{query}" if query else "")


def wants_page(request: HttpRequest, source: str | None) -> bool:
    """Is it a person who waits for the answer?"""
    if request.headers.get("HX-Request") or request.headers.get("X-Requested-With") == "XMLHttpRequest":
        return False
    return source == "form" or "text/html" in request.headers.get("Accept", "")
