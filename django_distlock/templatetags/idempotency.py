"""Template tags of ``{% load idempotency %}``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import template

from . import request_of

if TYPE_CHECKING:
    from django.template import Context
    from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag(takes_context=True)
def idempotency_key(context: Context, *actions: Any) -> SafeString:
    """A hidden field with a new key, for a form that posts to the address of this page or to one of ``actions``."""
    from django_distlock.idempotency.http.forms import hidden_field

    return hidden_field(request_of(context, "idempotency_key"), [str(action) for action in actions])
