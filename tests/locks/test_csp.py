"""The pages of the middlewares under the Content Security Policy that Django has since 6.0."""

from __future__ import annotations

import copy
import re
from typing import Any

import django
import pytest
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import override_settings

from django_distlock import LockNotAcquired
from django_distlock.idempotency.http.responses import page
from django_distlock.middleware import LockBusyMiddleware

NONCE_OF_THE_STYLE = re.compile(r'<style nonce="([\w-]+)">')


def busy(request: HttpRequest) -> HttpResponse:
    found = LockBusyMiddleware(lambda request: HttpResponse()).process_exception(request, LockNotAcquired("busy"))
    assert found is not None
    return found


def working(request: HttpRequest) -> HttpResponse:
    return page(request, "working", 409, 2.0)


pages = pytest.mark.parametrize("answer", [busy, working])


def templates(*more: str) -> list[dict[str, Any]]:
    made = copy.deepcopy(settings.TEMPLATES)
    made[0]["OPTIONS"]["context_processors"] = ["django.template.context_processors.request", *more]
    return made


@pytest.mark.skipif(django.VERSION < (6, 0), reason="ContentSecurityPolicyMiddleware came with Django 6.0")
@pages
def test_styles_have_the_nonce_of_the_policy(answer: Any) -> None:
    from django.middleware.csp import ContentSecurityPolicyMiddleware
    from django.utils.csp import CSP

    policy = {"default-src": [CSP.NONE], "style-src": [CSP.NONCE]}
    with override_settings(TEMPLATES=templates("django.template.context_processors.csp"), SECURE_CSP=policy):
        response = ContentSecurityPolicyMiddleware(answer)(HttpRequest())
    (nonce,) = NONCE_OF_THE_STYLE.findall(response.content.decode())
    assert f"style-src 'nonce-{nonce}'" in response["Content-Security-Policy"]


@pages
def test_without_a_nonce_there_is_none(answer: Any) -> None:
    with override_settings(TEMPLATES=templates()):
        text = answer(HttpRequest()).content.decode()
    assert "<style>" in text
    assert "nonce" not in text
