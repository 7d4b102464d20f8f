"""Template tags of ``{% load distlock_browser %}``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import template

from . import request_of

if TYPE_CHECKING:
    from django.template import Context

register = template.Library()


@register.simple_tag(takes_context=True)
def lock_grant(context: Context, name: str, **options: Any) -> str:
    """A signed grant for the lock ``name``, for an attribute of an element: ``data-grant="{% lock_grant name %}"``.

    ``options`` are those of :func:`django_distlock.browser.lock_grant`: ``ttl``, ``max_hold``, ``audience``.
    """
    from django_distlock.browser import lock_grant as sign

    return sign(name, request_of(context, "lock_grant"), **options)
