"""How the options of ``@idempotent`` are found on a view, and which views the middleware leaves alone."""

from __future__ import annotations

from functools import partial
from typing import Any

ATTRIBUTE, EXEMPT = "_distlock_idempotent", "_distlock_idempotency_exempt"

# A log-in changes the principal, so its answer must not be repeated. Django's own views, and those derived from them,
# are recognised by the names of their classes, without importing them.
_AUTH_VIEWS = {"LoginView", "LogoutView", "PasswordChangeView", "PasswordResetView", "PasswordResetConfirmView"}
_ADMIN_VIEWS = {"login", "logout", "password_change"}


def is_served_by_middleware(view: Any, method: str) -> bool:
    """Does the middleware claim the keys of this view? Views with ``@idempotent`` and those of the mixins do everything
    themselves."""
    return not (is_exempt(view, method) or any(hasattr(part, ATTRIBUTE) for part in _parts(view, method)))


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


def _parts(view: Any, method: str) -> list[Any]:
    """Where a decorator or a mixin may be: the view, its class, the handler of this method, its function, ``dispatch``;
    the ``run`` and the function of an operation of django-ninja; the class of a page of the admin."""
    while isinstance(view, partial):
        view = view.func
    kind = getattr(view, "view_class", None) or getattr(view, "cls", None)  # of Django, or of the REST framework
    if kind is None:
        operation = _operation(view, method)
        run, function = (getattr(operation, name, None) for name in ("run", "view_func"))
        return [view, run, function, getattr(view, "model_admin", None)]
    actions = getattr(view, "actions", None) or {}
    handler = getattr(kind, actions.get(method.lower(), method.lower()), None)
    # REST framework's api_view creates the handler, without functools.wraps
    of_framework = getattr(handler, "__module__", None) == "rest_framework.decorators"
    function = _enclosed(handler, "func") if of_framework else None
    return [view, kind, handler, function, getattr(kind, "dispatch", None)]


def _enclosed(function: Any, name: str) -> Any:
    """The variable of this name that ``function`` closes over; None without it."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return function.__closure__[names.index(name)].cell_contents if name in names else None


def _operation(view: Any, method: str) -> Any:
    """The operation of this method if it is django-ninja's view of a path: a method of the path, or a closure."""
    path = getattr(view, "__self__", None) or _enclosed(view, "self")
    operations = getattr(path, "operations", ())
    return next((each for each in operations if method in getattr(each, "methods", ())), None)
