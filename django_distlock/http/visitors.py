"""Who sends a request: the principal of its leases, the label that others see, and its session, left as it is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.core.exceptions import SynchronousOnlyOperation
from django.http.request import split_domain_port
from django.middleware.csrf import get_token
from django.utils.translation import gettext as _

from django_distlock.concurrency.text import one_line
from django_distlock.storage.values import exact

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

LONGEST_LABEL = 100


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request. ``site`` separates the hosts of one project: a grant counts on its host only."""

    principal: str
    label: str
    site: str
    logged_in: bool

    @property
    def signer(self) -> str:
        """The principal that grants are made out to."""
        return f"{self.principal}@{self.site}"

    @property
    def holder(self) -> str:
        """The principal of leases that belong to no database: user 5 of one host is not user 5 of another."""
        return exact(self.signer)


def visitor_of(request: HttpRequest, label_of: Callable[[Any], str]) -> Visitor:
    """The sender: the user, else the browser by the secret of its CSRF cookie, else its session.

    ``label_of`` says how a user is shown to others.
    """
    user = user_of(request)
    # not the port: the client chooses it, and would be another principal with each
    site = split_domain_port(request.get_host())[0]
    if user is not None and user.is_authenticated:
        label = one_line(label_of(user), LONGEST_LABEL)
        return Visitor(principal_of_user(user), label, site, True)
    label = _("A visitor without an account")
    get_token(request)  # a first visit gets the cookie now, and comes back with it
    if secret := request.META.get("CSRF_COOKIE"):
        return Visitor(f"browser:{_digest(str(secret))}", label, site, False)
    key = getattr(getattr(request, "session", None), "session_key", None)
    return Visitor(f"session:{_digest(key)}" if key else "anonymous", label, site, False)


def default_label(user: Any) -> str:
    """The full name, else the user name."""
    full_name = getattr(user, "get_full_name", None)
    return str((full_name() if full_name is not None else "") or user)


def user_of(request: HttpRequest) -> Any:
    """The user of the request, also in an async view that has awaited ``request.auser()``."""
    try:
        user: Any = getattr(request, "user", None)
        bool(user is not None and user.is_authenticated)  # a lazy object reads the database here
    except SynchronousOnlyOperation as error:
        user = getattr(request, "_acached_user", None)
        if user is None:
            raise SynchronousOnlyOperation(
                "The lock of a page has to know who is logged in: `await request.auser()` before you render the page, "
                "or render it in a thread."
            ) from error
    return user


def principal_of_user(user: Any) -> str:
    """The table and the primary key of a user; users that are no model are named by their class.

    A user without a key, who is in no table of this site, is named by its text: two of them are not one.
    """
    meta, number = getattr(user, "_meta", None), getattr(user, "pk", None)
    kind = meta.concrete_model._meta.label_lower if meta is not None else type(user).__qualname__
    return exact(f"user:{kind}/{user}" if number is None else f"user:{kind}:{number}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class UnsavedSession:
    """A session that no middleware saves and whose cookie no middleware prolongs.

    Django's SessionMiddleware leaves a request alone whose session has no ``accessed``. SESSION_SAVE_EVERY_REQUEST and
    middlewares that note the time of the latest request would otherwise keep an unattended login alive.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        if name == "accessed":
            raise AttributeError(name)
        return getattr(self._session, name)

    def __getitem__(self, key: str) -> Any:
        return self._session[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._session[key] = value

    def __delitem__(self, key: str) -> None:
        del self._session[key]

    def __contains__(self, key: str) -> bool:
        return key in self._session


def leave_session_alone(request: HttpRequest) -> None:
    """Let this request write no session: nobody may be at the computer."""
    session: Any = getattr(request, "session", None)
    if session is None:
        return
    before = session.session_key
    user_of(request)
    # a session that was signed with an old SECRET_KEY has a new key now, which the browser has to get
    if session.session_key == before:
        request.session = UnsavedSession(session)  # type: ignore[assignment]
