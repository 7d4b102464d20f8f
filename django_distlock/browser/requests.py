"""Who sends a request of distlock.js, and what its body asks for: grants, permissions, ids, times in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.http import Http404

from django_distlock.http.bodies import BadRequest
from django_distlock.http.csrf import is_sent_by_this_site
from django_distlock.http.grants import GrantError
from django_distlock.http.visitors import leave_session_alone, visitor_of
from django_distlock.storage.values import ID

from .conf import config
from .grants import LockGrant, read_grant

if TYPE_CHECKING:
    from django.http import HttpRequest

    from django_distlock.http.visitors import Visitor

    from .conf import BrowserConfig

SHORTEST_TTL = 1.0


@dataclass(frozen=True, slots=True)
class Sender:
    """The visitor who has sent a request, and what the visitor may have."""

    request: HttpRequest
    visitor: Visitor
    settings: BrowserConfig

    @classmethod
    def of(cls, request: HttpRequest) -> Sender:
        """The sender of ``request``, which writes no session from now on."""
        leave_session_alone(request)
        settings = config()
        return cls(request, visitor_of(request, settings.label_of), settings)

    @property
    def principal(self) -> str:
        """Whom the leases belong to."""
        return self.visitor.holder

    def grant(self, text: str) -> LockGrant:
        """The grant in ``text``. GrantError also if the request comes from another origin than it is for."""
        grant = read_grant(text, self.visitor.signer)
        origin = self.request.headers.get("Origin")
        if origin is None:  # no script in a browser: those send it with every POST
            return grant
        own = is_sent_by_this_site(self.request) if grant.audience is None else origin.lower() == grant.audience
        if not own:
            raise GrantError("audience", self.visitor.signer)
        return grant

    def is_permitted(self, name: str) -> bool:
        """Does ``PERMISSION`` say that the visitor may have the lock?"""
        if self.settings.permission is None:
            return True
        try:
            return bool(self.settings.permission(self.request, name))
        except (PermissionDenied, Http404, ObjectDoesNotExist):  # gone, perhaps; the rest of a batch goes on
            return False

    def ttl(self, grant: LockGrant, wanted: float | None) -> float:
        """The seconds that a lease lives: those of the grant, or fewer if the client wants that."""
        granted = grant.ttl if grant.ttl is not None else self.settings.ttl
        return granted if wanted is None else min(granted, max(wanted, SHORTEST_TTL))


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


# The members of a body: what stands for one that is left out, and what each has to be.
MEMBERS: dict[str, tuple[Any, Callable[[Any], bool], str]] = {
    "grant": (None, lambda value: isinstance(value, str), "the text that the server has signed"),
    "id": (
        None,
        lambda value: isinstance(value, str) and ID.fullmatch(value) is not None,
        "8 to 64 letters, digits, hyphens or underscores",
    ),
    "fence": (
        None,
        lambda value: type(value) is int and 0 <= value < 2**53,
        "the whole number that came with the lease",
    ),
    "ttl": (
        None,
        lambda value: value is None or (type(value) in (int, float) and value > 0),
        "a number of seconds above zero",
    ),
    "queue": (True, _is_flag, "true or false"),
    "hidden": (False, _is_flag, "true or false"),
    "again": (False, _is_flag, "true or false"),
}


def members(given: Any, *names: str) -> list[Any]:
    """The values of the members ``names`` of a JSON object. BadRequest if one is not what it has to be."""
    if not isinstance(given, Mapping):
        raise BadRequest("A lease is an object with an id, a fence and a grant.")
    found = []
    for name in names:
        default, is_right, what = MEMBERS[name]
        value = given.get(name, default)
        if not is_right(value):
            raise BadRequest(f"{name} is {what}.")
        found.append(value)
    return found
