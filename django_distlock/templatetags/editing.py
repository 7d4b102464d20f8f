"""Template tags of ``{% load editing %}``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import template

from . import request_of

if TYPE_CHECKING:
    from django.template import Context
    from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag(takes_context=True)
def edit_lock(context: Context, obj: Any, form: Any = None, **options: Any) -> SafeString | str:
    """The hidden fields and the script of an edit lock on ``obj``, inside its form.

    ``form`` is by default the ``form`` of the context; its fields make the version. ``options`` are those of
    ``DISTLOCK_EDITING`` in lower case: ``{% edit_lock form.instance when="open" %}``.
    """
    from django_distlock.editing.http.rendering import tag

    return tag(request_of(context, "edit_lock"), obj, context.get("form") if form is None else form, options)
