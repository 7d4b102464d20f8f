"""Who may edit an object, and who may take it over: asked when a form is rendered, saved, and again at each beat.

A beat arrives at an address that knows no view. So a grant names the address of its page, and a beat asks the view that
answers there: the same class or admin, with the same queryset and the same permissions.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import unquote

from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, QueryDict
from django.urls import get_script_prefix, resolve
from django.utils import translation

from django_distlock import BackendUnavailable
from django_distlock.concurrency import clock
from django_distlock.editing.conf import config
from django_distlock.editing.resources import pk_of
from django_distlock.http.transactions import transactions_of_request
from django_distlock.http.visitors import user_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.models import Model
    from django.http import HttpRequest
    from django.urls import ResolverMatch

    from django_distlock.editing.conf import EditingConfig
    from django_distlock.editing.records import EditLease, Resource

T = TypeVar("T")
logger = logging.getLogger("django_distlock.editing")
# What a view that knows edit locks has, so that a beat can ask it.
ATTRIBUTE = "distlock_editing"
TAKEOVER = "django_distlock.takeover_editlease"
MOST_REMEMBERED = 10_000
# Characters. A page with a longer query cannot be asked again, so it has no lock.
LONGEST_QUERY = 2000


@dataclass(frozen=True, slots=True)
class Access:
    """What a visitor may do with an object. ``gone``: it does not exist for this visitor, deleted or out of sight.

    ``unknown``: why nobody could be asked, "view" or "database"; then nothing is granted, and nothing taken away.
    """

    edit: bool
    gone: bool = False
    obj: Any = None
    unknown: str = ""


NONE, GONE = Access(False), Access(False, gone=True)


class Judge(Protocol):
    """A view that knows who may take over."""

    def may_take_over(self, request: HttpRequest, obj: Any) -> bool:
        """May the sender take the object over from another user?"""


class Page(Judge, Protocol):
    """A view that can be asked about permissions without being called. The request has the address of the page."""

    def config(self, request: HttpRequest) -> EditingConfig:
        """The options of the view."""

    def access(self, request: HttpRequest, resource: Resource) -> Access:
        """What the sender of ``request`` may do with the object."""


def permission_of(request: HttpRequest) -> str:
    """The text of a grant that says where the permission is asked again; "" for a query that is too long."""
    if len(request.META.get("QUERY_STRING", "")) > LONGEST_QUERY:
        return ""
    return f"page:{request.get_full_path_info()}"


class Gate:
    """The permissions of one request, by grant. A positive answer is remembered for one beat."""

    _remembered: dict[tuple[str, str, str], float] = {}  # noqa: RUF012 - of the process
    _takeovers: dict[tuple[str, str, str, str], tuple[float, bool]] = {}  # noqa: RUF012
    # The views whose errors were logged, with the kind of the error.
    _logged: set[tuple[str, str]] = set()  # noqa: RUF012

    def __init__(self, request: HttpRequest, signer: str, beat: float) -> None:
        self._request = request
        self._signer = signer
        self._beat = beat

    @classmethod
    def forget(cls) -> None:
        """Ask everything again; for tests."""
        cls._remembered.clear()
        cls._takeovers.clear()
        cls._logged.clear()

    def access(self, permission: str, resource: Resource, *, again: bool = False) -> Access:
        """What the visitor may do with the object; ``again``: ask even if the answer is remembered."""
        key = (self._signer, permission, resource.digest)
        if not again and self._remembered.get(key, 0) > clock.now():
            return Access(True)
        found = self._ask(permission, lambda page, request: page.access(request, resource))
        if found.edit:
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = clock.now() + self._beat
        else:
            self._remembered.pop(key, None)
        return found

    def _ask(self, permission: str, question: Callable[[Page, HttpRequest], T]) -> T | Access:
        """Ask the view of a grant as its own request would, in the transactions of ATOMIC_REQUESTS.

        It is called without its ``dispatch()`` and its middlewares, so it may fail in any way: see ``Access.unknown``.
        """
        match = None
        try:
            request, match = self._request_of(permission)
            with transactions_of_request():
                return question(page_of(match), request)
        except PermissionDenied:
            return NONE
        except Http404 as error:
            return GONE if match is not None else self._unknown(error, "view", "No view answers at the page of a form")
        except ObjectDoesNotExist:
            return GONE
        except (OperationalError, InterfaceError, BackendUnavailable) as error:
            return self._unknown(error, "database", name_of(match))
        except Exception as error:
            return self._unknown(error, "view", name_of(match))

    def _request_of(self, permission: str) -> tuple[HttpRequest, ResolverMatch]:
        """The request as the view of a grant would get it, with the address of its page. Http404 if it has no view."""
        address, _, query = permission.removeprefix("page:").partition("?")
        path = unquote(address)
        with translation.override(translation.get_language_from_path(path) or translation.get_language()):
            match = resolve(path, getattr(self._request, "urlconf", None))
        request: Any = object.__new__(type(self._request))
        request.__dict__.update(self._request.__dict__)
        request.META = {**self._request.META, "PATH_INFO": path, "QUERY_STRING": query}
        request.path_info, request.path = path, f"{get_script_prefix().rstrip('/')}{path}"
        request.GET = QueryDict(query, encoding=self._request.encoding)
        request.resolver_match = match
        return request, match

    def _unknown(self, error: Exception, reason: str, name: str) -> Access:
        """Log the error, once for each view."""
        key = (name, type(error).__name__)
        if key not in self._logged:
            self._logged.add(key)
            logger.error(
                "A form has no edit lock, as its view cannot be asked outside of its request: %s. A beat calls setup() "
                "and get_object(), and not dispatch().",
                name,
                exc_info=error,
            )
        return Access(False, unknown=reason)

    def offers_takeover(self, permission: str, resource: Resource, holder: EditLease | None) -> bool:
        """Should the page offer a takeover? The answer is remembered for one beat."""
        key = (self._signer, permission, resource.digest, "" if holder is None else holder.lease)
        until, answer = self._takeovers.get(key, (0.0, False))
        if until <= clock.now():
            answer = self.may_take_over(permission, resource, holder)
            if len(self._takeovers) >= MOST_REMEMBERED:
                self._takeovers.clear()
            self._takeovers[key] = (clock.now() + self._beat, answer)
        return answer

    def may_take_over(
        self, permission: str, resource: Resource, holder: EditLease | None, child: Resource | None = None
    ) -> bool:
        """May the visitor take this lease over? ``TAKEOVER`` may refuse what the permission allows.

        ``child``: an object of an inline, whose own admin decides if it has edit locks.
        """
        access = self.access(permission, resource, again=True)
        if not access.edit:
            return False

        def question(page: Page, request: HttpRequest) -> bool:
            obj = access.obj
            if child is not None and (own := getattr(page, "of", lambda kind: None)(child.kind)) is not None:
                found = own.access(request, child)
                if not found.edit:
                    return False
                page, obj = own, found.obj
            return may_take_over(request, page.config(request), obj, holder, page)

        return self._ask(permission, question) is True


def may_take_over(
    request: HttpRequest, options: EditingConfig, obj: Any, holder: EditLease | None, page: Judge | None = None
) -> bool:
    """May the sender take ``obj`` over, by the page, and by ``TAKEOVER``?"""
    user = user_of(request)
    allowed = decided(page.may_take_over(request, obj)) if page is not None else has_takeover(user)
    if not allowed or options.takeover is None:
        return bool(allowed)
    return decided(options.takeover(user, obj, holder.owner.principal if holder and holder.owner else None))


def decided(answer: Any) -> bool:
    """The answer of a hook that decides on a permission. TypeError for an awaitable, which would always mean yes."""
    if isawaitable(answer):
        if iscoroutine(answer):
            answer.close()
        raise TypeError("What decides on the permissions of an edit lock must be a plain function, not async.")
    return bool(answer)


def has_takeover(user: Any) -> bool:
    return user is not None and user.is_authenticated and user.has_perm(TAKEOVER)


def name_of(match: ResolverMatch | None) -> str:
    """The view of an address, for the log."""
    view = getattr(match, "func", None)
    admin = getattr(view, "model_admin", None)
    found: Any = type(admin) if admin is not None else getattr(view, "view_class", view)
    return f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', repr(found))}"


def page_of(match: ResolverMatch) -> Page:
    """The view of an address, as one that can be asked."""
    found: Any = getattr(match.func, ATTRIBUTE, None)
    if found is None and (admin := getattr(match.func, "model_admin", None)) is not None:
        found = getattr(admin, ATTRIBUTE, None)
    return found if found is not None else PlainPage()


class PlainPage:
    """A view that has nothing but the template tag. Whether the user may see the page is known to the view alone."""

    def config(self, request: HttpRequest) -> EditingConfig:
        return config()

    def access(self, request: HttpRequest, resource: Resource) -> Access:
        return Access(True)

    def may_take_over(self, request: HttpRequest, obj: Any) -> bool:
        return has_takeover(user_of(request))


class FunctionPage:
    """A function view with ``@edit_locked``. ``permission`` is the name of one, or a callable ``(request, obj)``."""

    def __init__(
        self,
        model: type[Model],
        permission: str | Callable[[HttpRequest, Any], bool] | None,
        takeover: Any,
        settings_of: Callable[[], EditingConfig],
    ) -> None:
        self._model = model
        self._permission = permission
        self._takeover = takeover
        self._settings_of = settings_of

    def config(self, request: HttpRequest) -> EditingConfig:
        return self._settings_of()

    def access(self, request: HttpRequest, resource: Resource) -> Access:
        if isinstance(self._permission, str) and not has_permission(request, self._permission):
            return NONE
        obj = self._model._base_manager.using(resource.database).filter(pk=pk_of(resource)).first()
        if obj is None:
            return GONE
        if callable(self._permission) and not decided(self._permission(request, obj)):
            return NONE
        return Access(True, obj=obj)

    def may_take_over(self, request: HttpRequest, obj: Any) -> bool:
        if callable(self._takeover):
            return decided(self._takeover(request, obj))
        return has_permission(request, self._takeover or TAKEOVER)


def has_permission(request: HttpRequest, permission: str) -> bool:
    user = user_of(request)
    return user is not None and user.is_authenticated and user.has_perm(permission)
