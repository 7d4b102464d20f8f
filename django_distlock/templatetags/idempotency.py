"""Template tags of ``{% load idempotency %}``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import template

if TYPE_CHECKING:
    from django.template import Context
    from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag(takes_context=True)
def idempotency_key(context: Context, *actions: Any) -> SafeString:
    """A hidden field with a new key, for a form that posts to the address of this page or to one of ``actions``."""
    from django_distlock.idempotency.http.forms import hidden_field

    request = context.get("request")
    if request is None:
        raise template.TemplateSyntaxError(
            "{% idempotency_key %} needs the request in the context: render(request, ...), and the context processor "
            "django.template.context_processors.request."
        )
    return hidden_field(request, [str(action) for action in actions])
