"""Who may edit an object, and who may take it over: asked when a form is rendered, saved, and again at each beat.

A beat arrives at an address that knows no view. So a grant names the address of its page, and a beat asks the view that
answers there: the same class or admin, with the same queryset and the same permissions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.http import Http404
from django.urls import Resolver404, resolve
from django.utils import translation

from django_distlock.concurrency.clock import monotonic
from django_distlock.editing.resources import pk_of
from django_distlock.http.visitors import user_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.models import Model
    from django.http import HttpRequest
    from django.urls import ResolverMatch

    from django_distlock.editing.conf import EditingConfig
    from django_distlock.editing.records import EditLease, Resource

# What a view that knows edit locks has, so that a beat can ask it.
ATTRIBUTE = "distlock_editing"
TAKEOVER = "django_distlock.takeover_editlease"
MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Access:
    """What a visitor may do with an object. ``gone``: it does not exist for this visitor, deleted or out of sight."""

    edit: bool
    gone: bool = False
    obj: Any = None


NONE, GONE = Access(False), Access(False, gone=True)


class Page(Protocol):
    """A view that can be asked about permissions without being called."""

    def access(self, request: HttpRequest, match: ResolverMatch, resource: Resource) -> Access:
        """What the sender of ``request`` may do with the object."""

    def may_take_over(self, request: HttpRequest, obj: Any) -> bool:
        """May the sender take the object over from another user?"""


def permission_of(request: HttpRequest) -> str:
    """The text of a grant that says where the permission is asked again."""
    return f"page:{request.path_info}"


class Gate:
    """The permissions of one request, by grant. A positive answer is remembered for one beat."""

    _remembered: dict[tuple[str, str, str], float] = {}  # noqa: RUF012 - of the process
    _takeovers: dict[tuple[str, str, str, str], tuple[float, bool]] = {}  # noqa: RUF012

    def __init__(self, request: HttpRequest, signer: str, config: EditingConfig) -> None:
        self._request = request
        self._signer = signer
        self._config = config

    @classmethod
    def forget(cls) -> None:
        """Ask everything again; for tests."""
        cls._remembered.clear()
        cls._takeovers.clear()

    def access(self, permission: str, resource: Resource, *, again: bool = False) -> Access:
        """What the visitor may do with the object; ``again``: ask even if the answer is remembered."""
        key = (self._signer, permission, resource.digest)
        if not again and self._remembered.get(key, 0) > monotonic():
            return Access(True)
        found = self._asked(permission, resource)
        if found.edit:
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = monotonic() + self._config.beat
        else:
            self._remembered.pop(key, None)
        return found

    def _asked(self, permission: str, resource: Resource) -> Access:
        match = self._match(permission)
        if match is None:
            return GONE
        try:
            return page_of(match).access(self._request, match, resource)
        except PermissionDenied:
            return NONE
        except (Http404, ObjectDoesNotExist, ValueError, LookupError):
            return GONE

    def _match(self, permission: str) -> ResolverMatch | None:
        path = permission.removeprefix("page:")
        try:
            with translation.override(translation.get_language_from_path(path) or translation.get_language()):
                return resolve(path, getattr(self._request, "urlconf", None))
        except Resolver404:
            return None

    def offers_takeover(self, permission: str, resource: Resource, holder: EditLease | None) -> bool:
        """Should the page offer a takeover? The answer is remembered for one beat."""
        key = (self._signer, permission, resource.digest, "" if holder is None else holder.lease)
        until, answer = self._takeovers.get(key, (0.0, False))
        if until <= monotonic():
            answer = self.may_take_over(permission, resource, holder)
            if len(self._takeovers) >= MOST_REMEMBERED:
                self._takeovers.clear()
            self._takeovers[key] = (monotonic() + self._config.beat, answer)
        return answer

    def may_take_over(self, permission: str, resource: Resource, holder: EditLease | None) -> bool:
        """May the visitor take this lease over? ``TAKEOVER`` of the settings may refuse what the permission allows."""
        access = self.access(permission, resource, again=True)
        match = self._match(permission)
        if not access.edit or match is None:
            return False
        return may_take_over(self._request, self._config, access.obj, holder, page_of(match))


def may_take_over(
    request: HttpRequest, config: EditingConfig, obj: Any, holder: EditLease | None, page: Page | None = None
) -> bool:
    """May the sender take ``obj`` over, by the page, and by the callable of the settings?"""
    user = user_of(request)
    allowed = page.may_take_over(request, obj) if page is not None else has_takeover(user)
    if not allowed or config.takeover is None:
        return bool(allowed)
    return bool(config.takeover(user, obj, holder.owner.principal if holder and holder.owner else None))


def has_takeover(user: Any) -> bool:
    return user is not None and user.is_authenticated and user.has_perm(TAKEOVER)


def page_of(match: ResolverMatch) -> Page:
    """The view of an address, as one that can be asked."""
    found: Any = getattr(match.func, ATTRIBUTE, None)
    if found is None and (admin := getattr(match.func, "model_admin", None)) is not None:
        found = getattr(admin, ATTRIBUTE, None)
    return found if found is not None else PlainPage()


class PlainPage:
    """A view that has nothing but the template tag. Whether the user may see the page is known to the view alone."""

    def access(self, request: HttpRequest, match: ResolverMatch, resource: Resource) -> Access:
        return Access(True)

    def may_take_over(self, request: HttpRequest, obj: Any) -> bool:
        return has_takeover(user_of(request))


class FunctionPage:
    """A function view with ``@edit_locked``. ``permission`` is the name of one, or a callable ``(request, obj)``."""

    def __init__(
        self, model: type[Model], permission: str | Callable[[HttpRequest, Any], bool] | None, takeover: Any
    ) -> None:
        self._model = model
        self._permission = permission
        self._takeover = takeover

    def access(self, request: HttpRequest, match: ResolverMatch, resource: Resource) -> Access:
        if isinstance(self._permission, str) and not _has(request, self._permission):
            return NONE
        obj = self._model._base_manager.using(resource.database).filter(pk=pk_of(resource)).first()
        if obj is None:
            return GONE
        if callable(self._permission) and not self._permission(request, obj):
            return NONE
        return Access(True, obj=obj)

    def may_take_over(self, request: HttpRequest, obj: Any) -> bool:
        if callable(self._takeover):
            return bool(self._takeover(request, obj))
        return _has(request, self._takeover or TAKEOVER)


def _has(request: HttpRequest, permission: str) -> bool:
    user = user_of(request)
    return user is not None and user.is_authenticated and user.has_perm(permission)
