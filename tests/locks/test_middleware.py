"""LockBusyMiddleware: a busy lock that leaves a view is 503 with Retry-After; every other error stays what it is."""

from __future__ import annotations

import copy
import re
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.utils import translation

import django_distlock
from django_distlock import LockNotAcquired, LockTimeout
from django_distlock.idempotency.http.responses import store_down
from django_distlock.middleware import LockBusyMiddleware
from tests.locks.elsewhere import held_elsewhere
from tests.locks.views import NAME, to_raise

pytestmark = pytest.mark.urls("tests.locks.views")

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
HTML, PROBLEM = "text/html; charset=utf-8", "application/problem+json"


def get(path: str, **headers: str) -> Any:
    """By the client of the view's own kind."""
    if path.startswith("async"):
        return async_to_sync(AsyncClient(raise_request_exception=False).get)(f"/{path}/", headers=headers)
    return Client(raise_request_exception=False).get(f"/{path}/", headers=headers)


@pytest.mark.parametrize("path", ["function", "async", "dispatch", "async_dispatch", "drf_dispatch"])
def test_busy_page_for_a_browser_and_problem_for_a_program(path: str) -> None:
    with held_elsewhere(NAME):
        page, problem = get(path, accept=BROWSER), get(path, accept="application/json")
    for response in (page, problem):
        assert response.status_code == 503
        assert (response["Retry-After"], response["Cache-Control"]) == ("2", "no-store")
        assert "Accept" in response["Vary"]
        assert NAME not in response.content.decode(), "the name of a lock may hold what is nobody's business"
    assert (page["Content-Type"], problem["Content-Type"]) == (HTML, PROBLEM)
    assert "<h1>Busy</h1>" in page.content.decode()
    told = problem.json()
    assert (told["type"], told["title"], told["status"]) == ("about:blank", "Busy", 503)


def test_preference_of_the_client_and_other_methods_and_middleware() -> None:
    """The locale's header is added after ours."""
    preferred = {
        "*/*": HTML,
        "text/html, application/json;q=0.9": HTML,
        "application/json;q=0.9, text/html;q=0.1": PROBLEM,
        "this is no media type": PROBLEM,
    }
    with held_elsewhere(NAME):
        assert {accept: get("function", accept=accept)["Content-Type"] for accept in preferred} == preferred
        assert get("function")["Content-Type"] == HTML
    middleware = ["django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE]
    with override_settings(MIDDLEWARE=middleware), held_elsewhere(NAME):
        head, post = Client().head("/function/"), Client().post("/function/")
    assert head.status_code == post.status_code == 503
    assert (head["Retry-After"], head.content) == ("2", b"")
    assert {"Accept", "Accept-Language"} <= {header.strip() for header in post["Vary"].split(",")}


OTHERS = ["DistlockError", "LockLost", "LockNotHeld", "DeadlockDetected", "UnsupportedOperation", "BackendUnavailable"]


@pytest.mark.parametrize("path", ["raises", "async_raises"])
def test_r6_what_is_busy_and_what_is_another_error(path: str) -> None:
    """Also where the error was met in the body of the view, not by a decorator."""
    for error in (LockNotAcquired(), LockTimeout()):
        to_raise.append(error)
        assert get(path).status_code == 503
    for kind in (*(getattr(django_distlock, name) for name in OTHERS), TimeoutError, ValueError):
        to_raise.append(kind("no"))
        response = get(path)
        assert (response.status_code, "Retry-After" in response) == (500, False)
        with pytest.raises(kind) as raised:
            Client().get(f"/{path}/")
        assert raised.value is to_raise[-1]


def below(request: Any) -> HttpResponse:
    return HttpResponse()


def busy(request: HttpRequest, middleware: type[LockBusyMiddleware] = LockBusyMiddleware) -> Any:
    return middleware(below).process_exception(request, LockNotAcquired("busy"))


@pytest.mark.parametrize(("seconds", "header"), [(0, "1"), (2.5, "3")])
def test_retry_after_of_a_subclass_in_whole_seconds(rf: RequestFactory, seconds: float, header: str) -> None:
    """RFC 9110: Retry-After is a whole number of seconds; 0 would invite a storm."""
    patient = type("Patient", (LockBusyMiddleware,), {"retry_after": seconds})
    with translation.override("ar"):  # without a translation the page is English, and says so to a screen reader
        response = busy(rf.get("/"), patient)
    assert response["Retry-After"] == header
    assert f"Waiting {header} second{'' if header == '1' else 's'} is enough" in response.content.decode()
    assert '<html lang="en">' in response.content.decode()


@pytest.mark.parametrize("answer", [busy, lambda request: store_down(request, html=True)])
def test_styles_have_the_nonce_of_a_content_security_policy(answer: Any) -> None:
    """If there is one: django.middleware.csp came with Django 6.0."""
    templates = copy.deepcopy(settings.TEMPLATES)
    processors = templates[0]["OPTIONS"]["context_processors"] = ["django.template.context_processors.request"]
    with override_settings(TEMPLATES=templates):
        text = answer(HttpRequest()).content.decode()
        assert "<style>" in text
        assert "nonce" not in text
    if django.VERSION >= (6, 0):
        from django.middleware.csp import ContentSecurityPolicyMiddleware
        from django.utils.csp import CSP

        processors.append("django.template.context_processors.csp")
        policy = {"default-src": [CSP.NONE], "style-src": [CSP.NONCE]}
        with override_settings(TEMPLATES=templates, SECURE_CSP=policy):
            response = ContentSecurityPolicyMiddleware(answer)(HttpRequest())
        (nonce,) = re.findall(r'<style nonce="([\w-]+)">', response.content.decode())
        assert f"style-src 'nonce-{nonce}'" in response["Content-Security-Policy"]
