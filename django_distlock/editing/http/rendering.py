"""The markup that a template tag or the admin puts inside a form."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.safestring import SafeString

from django_distlock.editing.conf import config
from django_distlock.editing.resources import resource_of
from django_distlock.editing.versions import version_of

from .forms import LockedForm, editable_fields, open_form, ready_forms, rendered

if TYPE_CHECKING:
    from django.http import HttpRequest

    from django_distlock.editing.grants import ReadyForm


def tag(request: HttpRequest, obj: Any, form: Any, options: dict[str, Any]) -> SafeString:
    """The markup for ``obj``; none for an object that is not saved yet, and none in the mode "off"."""
    if "takeover" in options:
        raise ImproperlyConfigured(
            "TAKEOVER is no option of a tag: a save and a beat do not see it. Set it in the view."
        )
    if obj is None or not hasattr(obj, "_state") or obj._state.adding:
        return SafeString()
    resource = resource_of(obj)
    ready = ready_forms(request).get(resource)
    if ready is None:
        raise ImproperlyConfigured(
            f"{{% edit_lock %}} for {resource.model} {resource.pk}: the view has no edit lock on it, so that nothing "
            "would refuse a save. Use EditLockMixin, @edit_locked or EditLockAdmin for this object."
        )
    if isinstance(ready, LockedForm):
        ready = _opened(request, obj, ready, form, options)
    elif options:
        ready = replace(ready, config=replace(ready.config, **_checked(options)))
    return SafeString() if ready is None or ready.config.mode == "off" else rendered(request, ready)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    checked = config(**options)
    return {name: getattr(checked, name) for name in options}


def _opened(request: HttpRequest, obj: Any, found: LockedForm, form: Any, options: dict[str, Any]) -> ReadyForm | None:
    """The grant of a form whose view has made none."""
    settings = replace(found.config, **_checked(options))
    if settings.mode == "off":
        return None
    fields = editable_fields(form) if getattr(form, "instance", None) is obj else None
    opened = open_form(request, copy(obj), settings, fields=fields, leases=found.leases)
    if opened is None or request.method != "GET":
        return opened
    # the view has loaded what the form shows before: its version, and not that of the row as it is now
    return replace(opened, grant=replace(opened.grant, version=version_of(obj, opened.grant.fields)))
