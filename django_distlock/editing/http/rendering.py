"""The markup that a template tag or the admin puts inside a form."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.safestring import SafeString

from django_distlock.editing.conf import EditingConfig, config
from django_distlock.editing.resources import resource_of
from django_distlock.editing.versions import version_of

from .forms import ReadyForm, editable_fields, field_again, field_of, html_of, leases_before, open_form, ready_forms
from .permissions import ATTRIBUTE, FunctionPage

if TYPE_CHECKING:
    from django.http import HttpRequest


def tag(request: HttpRequest, obj: Any, form: Any, options: dict[str, Any]) -> SafeString:
    """The markup for ``obj``; none for an object that is not saved yet, and none in the mode "off"."""
    if "takeover" in options:
        raise ImproperlyConfigured(
            "TAKEOVER is no option of a tag: a save and a beat do not see it. Set it in the view."
        )
    if obj is None or not hasattr(obj, "_state") or obj._state.adding:
        return SafeString()
    ready = ready_forms(request).get(resource_of(obj))
    if ready is None:
        ready = _ready(request, obj, form, options)
    elif options:
        ready = replace(ready, config=replace(ready.config, **_checked(options)))
    return SafeString() if ready is None or ready.config.mode == "off" else rendered(request, ready)


def rendered(request: HttpRequest, ready: ReadyForm, addresses: dict[str, str] | None = None) -> SafeString:
    """The markup of a form whose grant is ready."""
    if ready.posted is not None and ready.posted.text:
        field = field_again(request, ready.grant, ready.posted)
    else:
        field = field_of(request, ready.grant, ready.config)
    return html_of(request, field, ready.config, addresses)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    checked = config(**options)
    return {name: getattr(checked, name) for name in options}


def _options_of(request: HttpRequest) -> EditingConfig:
    """The options of a page without the mixin: those of ``@edit_locked``, else those of the setting."""
    page = getattr(request.resolver_match and request.resolver_match.func, ATTRIBUTE, None)
    return page.config(request) if isinstance(page, FunctionPage) else config()


def _ready(request: HttpRequest, obj: Any, form: Any, options: dict[str, Any]) -> ReadyForm | None:
    """The grant of a form in a view without the mixin."""
    settings = replace(_options_of(request), **_checked(options))
    if settings.mode == "off":
        return None
    fields = editable_fields(form) if getattr(form, "instance", None) is obj else None
    opened = open_form(request, [obj], settings, fields=fields, leases=leases_before(request).get(resource_of(obj)))
    if opened is None:
        return None
    grant = opened.grant
    if request.method == "GET":
        # the view has loaded what the form shows before: its version, and not that of the row as it is now
        grant = replace(grant, version=version_of(obj, grant.fields))
    return ReadyForm(grant=grant, config=settings)
