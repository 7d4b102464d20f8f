"""The answer to a form whose CSRF token is out of date: the text is kept by whichever feature knows the form."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.views.csrf import csrf_failure as django_failure

from django_distlock.editing.http.csrf import keep_form

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


def csrf_failure(request: HttpRequest, reason: str = "", **kwargs: Any) -> HttpResponse:
    kept = keep_form(request, reason)
    if kept is None and find_spec("django_distlock.idempotency") is not None:
        from django_distlock.idempotency import csrf

        kept = csrf.keep_form(request, reason)
    return kept or django_failure(request, reason=reason, **kwargs)
