"""The options of ``@idempotent``, checked at decoration time, and how they are found on a view."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal

from asgiref.sync import iscoroutinefunction

from django_distlock.validation import flag, seconds

from .records import Record

OnCrash = Literal["retry", "hold"] | Callable[[Record], Any]
OnStoreError = Literal["closed", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one view. None means the value in ``DISTLOCK_IDEMPOTENCY``. Times in seconds."""

    required: bool = False
    atomic: bool | str = False
    ttl: float | None = None
    claim_ttl: float | None = None
    wait: float | None = None
    fingerprint_exclude: Collection[str] = ()
    on_crash: OnCrash | None = None
    on_store_error: OnStoreError | None = None
    key: Callable[[Any], str | None] | None = None
    anonymous: bool = False
    scope: Callable[[Any], str] | None = None
    fingerprint: Callable[[Any], str | bytes] | None = None
    replay_to_credentials: bool | None = None

    def __post_init__(self) -> None:
        flag("required", self.required)
        flag("anonymous", self.anonymous)
        if self.replay_to_credentials is not None:
            flag("replay_to_credentials", self.replay_to_credentials)
        if not isinstance(self.atomic, (bool, str)) or self.atomic == "":
            raise TypeError("atomic must be a bool or an alias in DATABASES.")
        for name in ("ttl", "claim_ttl"):
            seconds(name, getattr(self, name), none=True, positive=True)
        seconds("wait", self.wait, none=True)
        if isinstance(self.fingerprint_exclude, str) or not all(isinstance(x, str) for x in self.fingerprint_exclude):
            raise TypeError("fingerprint_exclude must be a list of names of fields.")
        if self.on_crash not in (None, "retry", "hold") and not callable(self.on_crash):
            raise ValueError('on_crash must be "retry", "hold" or a callable.')
        if self.on_store_error not in (None, "closed", "open"):
            raise ValueError('on_store_error must be "closed" or "open".')
        for name in ("key", "scope", "fingerprint"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a callable that takes the request.")
        for name in ("on_crash", "key", "scope", "fingerprint"):
            if iscoroutinefunction(getattr(self, name)):
                raise TypeError(f"{name} must be a plain function, of async views too: it is called in a thread.")


PLAIN = Options()
NAMES = tuple(field.name for field in fields(Options))
ATTRIBUTE, EXEMPT = "_distlock_idempotent", "_distlock_idempotency_exempt"

# A log-in changes the principal, so its answer must not be repeated. Django's own views, and those derived from them,
# are recognised by the names of their classes, without importing them.
_AUTH_VIEWS = {"LoginView", "LogoutView", "PasswordChangeView", "PasswordResetView", "PasswordResetConfirmView"}
_ADMIN_VIEWS = {"login", "logout", "password_change"}


def options_of(view: Any, method: str) -> Options | None:
    """The options of a view, of its class, or of its handler for this method, if they have any."""
    return next((found for part in _parts(view, method) if (found := getattr(part, ATTRIBUTE, None)) is not None), None)


def is_exempt(view: Any, method: str) -> bool:
    """Is the view exempt: by its decorator, or because it logs a user in or out?"""
    if any(getattr(part, EXEMPT, False) for part in _parts(view, method)):
        return True
    kind: Any = getattr(view, "view_class", None)
    if kind is not None:
        return any(
            base.__module__ == "django.contrib.auth.views" and base.__name__ in _AUTH_VIEWS for base in kind.__mro__
        )
    # the admin wraps its views, except the log-in
    site = getattr(view, "admin_site", None) or getattr(view, "__self__", None)
    of_admin = any(base.__module__ == "django.contrib.admin.sites" for base in type(site).__mro__)
    return of_admin and getattr(view, "__name__", "") in _ADMIN_VIEWS


def view_class(view: Any) -> Any:
    """The class of a class-based view, of Django or of the REST framework."""
    return getattr(view, "view_class", None) or getattr(view, "cls", None)


def _parts(view: Any, method: str) -> list[Any]:
    while isinstance(view, partial):
        view = view.func
    kind = view_class(view)
    if kind is None:
        return [view, *_operation(view, method)]
    actions = getattr(view, "actions", None) or {}
    handler = getattr(kind, actions.get(method.lower(), method.lower()), None)
    # REST framework's api_view creates the handler, without functools.wraps
    of_framework = getattr(handler, "__module__", None) == "rest_framework.decorators"
    function = _enclosed(handler, "func") if of_framework else None
    return [view, handler, function, getattr(kind, "dispatch", None)]


def _enclosed(function: Any, name: str) -> Any:
    """The variable of this name that ``function`` closes over; None without it."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return function.__closure__[names.index(name)].cell_contents if name in names else None


def _operation(view: Any, method: str) -> list[Any]:
    """For django-ninja's view of a path: the ``run`` of the operation of this method, and its function.

    The view is a method of the path, or a function that closes over it.
    """
    path = getattr(view, "__self__", None)
    if path is None:
        path = _enclosed(view, "self")
    for operation in getattr(path, "operations", ()):
        if method in getattr(operation, "methods", ()):
            return [getattr(operation, "run", None), getattr(operation, "view_func", None)]
    return []
