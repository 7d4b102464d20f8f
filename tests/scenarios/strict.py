"""A site whose pages may load what it serves itself, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest


def strict_policy(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """A middleware."""

    def respond(request: HttpRequest) -> Any:
        response = get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'; form-action 'self'; frame-ancestors 'self'"
        return response

    return respond
