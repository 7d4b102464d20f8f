"""Answers that stand for that of the view: a small page for people, problem+json (RFC 9457) for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.templatetags.static import static

from django_distlock.middleware import language_of_texts, text_language

from .bodies import private

if TYPE_CHECKING:
    from django.http import HttpRequest


def page(request: HttpRequest, template: str, status: int, **context: Any) -> HttpResponse:
    """A page in the language of the package's texts. Its template extends ``django_distlock/page.html``."""
    files = {"page_styles": static_url("editing-page.css"), "again_script": static_url("distlock-again.js")}
    text = render_to_string(template, {**context, **files, "language": language_of_texts()}, request)
    # typed text may have lone surrogates: the client chooses the charset
    return _told(HttpResponse(text.encode("utf-8", "replace"), status=status))


def static_url(name: str) -> str:
    """The address of a static file of this package; "" if the manifest of the site lacks it, since an answer that
    stands for an error must not fail."""
    try:
        return static(f"django_distlock/{name}")
    except ValueError:
        return ""


def problem(status: int, title: str, detail: str, *, kind: str = "about:blank", **facts: Any) -> HttpResponse:
    """Problem details. ``kind`` is the URI of the problem, ``facts`` are further members for programs."""
    told = {"type": kind, "title": title, "status": status, "detail": detail, **facts}
    return _told(JsonResponse(told, status=status, content_type="application/problem+json"))


def _told(response: HttpResponse) -> HttpResponse:
    response["Content-Language"] = text_language()
    return private(response)
