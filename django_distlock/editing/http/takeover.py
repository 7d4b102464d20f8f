"""Who may take an object over from another user."""

from __future__ import annotations

from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any

from django_distlock.http.visitors import user_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

    from django_distlock.editing.conf import EditingConfig
    from django_distlock.leases.records import Row

TAKEOVER = "django_distlock.takeover_editlease"


def may_take_over(
    request: HttpRequest,
    options: EditingConfig,
    obj: Any,
    holder: Row | None,
    hook: Callable[[HttpRequest, Any], bool],
) -> bool:
    """May the sender take ``obj`` over? ``TAKEOVER`` may refuse what the hook of the view allows."""
    allowed = decided(hook(request, obj))
    if not allowed or options.takeover is None:
        return allowed
    return decided(options.takeover(user_of(request), obj, holder.principal if holder and holder.lease else None))


def decided(answer: Any) -> bool:
    """The answer of a hook that decides on a permission. TypeError for an awaitable, which would always mean yes."""
    if isawaitable(answer):
        if iscoroutine(answer):
            answer.close()
        raise TypeError("What decides on the permissions of an edit lock must be a plain function, not async.")
    return bool(answer)


def has_permission(request: HttpRequest, permission: str = TAKEOVER) -> bool:
    """Has the user the permission? A visitor without an account has none."""
    user = user_of(request)
    return user is not None and bool(user.is_authenticated and user.has_perm(permission))
