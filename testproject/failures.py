"""The answer to a form whose CSRF token is out of date: the text is kept by whichever feature knows the form."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string
from django.views.csrf import csrf_failure as django_failure

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


def csrf_failure(request: HttpRequest, reason: str = "", **kwargs: Any) -> HttpResponse:
    for feature, module in (("editing", "editing.http.csrf"), ("idempotency", "idempotency.csrf")):
        if find_spec(f"django_distlock.{feature}"):
            kept = import_string(f"django_distlock.{module}.keep_form")(request, reason)
            if kept is not None:
                return kept
    return django_failure(request, reason=reason, **kwargs)
