"""What the template tags share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.template import TemplateSyntaxError

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.template import Context


def request_of(context: Context, tag: str) -> HttpRequest:
    """The request of a page. TemplateSyntaxError where its context has none."""
    request: HttpRequest | None = context.get("request")
    if request is None:
        raise TemplateSyntaxError(
            f"{{% {tag} %}} needs the request in the context: render(request, ...), and the context processor "
            "django.template.context_processors.request."
        )
    return request
