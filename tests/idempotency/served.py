"""Settings, URLs and views of the site that real servers run. A request may ask for the death of its worker."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_distlock.idempotency import idempotent
from django_distlock.idempotency.signals import key_claimed
from tests.idempotency.conftest import MIDDLEWARE as SITE
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE = 0.5  # seconds
POINTS = ("before the claim", "after the claim", "in the view", "after commit", "before the answer")
MIDDLEWARE = ["tests.idempotency.served.Outside", *SITE, "tests.idempotency.served.Inside"]
ROOT_URLCONF = "tests.idempotency.served"


def die(request: HttpRequest, point: str) -> None:
    if request.headers.get("X-Die") == point:
        os.kill(os.getpid(), signal.SIGKILL)


class Outside:
    """Above everything: nothing has been claimed yet; nothing has been sent yet."""

    sync_capable = async_capable = True

    def __new__(cls, get_response: Callable[[HttpRequest], Any]) -> Any:
        from asgiref.sync import iscoroutinefunction

        if iscoroutinefunction(get_response):

            async def amiddleware(request: HttpRequest) -> Any:
                return await get_response(request)

            return amiddleware

        def middleware(request: HttpRequest) -> Any:
            die(request, "before the claim")
            response = get_response(request)
            die(request, "before the answer")
            return response

        return middleware


class Inside(Outside):
    """Below everything: the view's transaction has ended, and what becomes of the answer is not settled."""

    def __new__(cls, get_response: Callable[[HttpRequest], Any]) -> Any:
        from asgiref.sync import iscoroutinefunction

        if iscoroutinefunction(get_response):
            return super().__new__(cls, get_response)

        def middleware(request: HttpRequest) -> Any:
            response = get_response(request)
            die(request, "after commit")
            return response

        return middleware


key_claimed.connect(lambda request, **facts: die(request, "after the claim"), weak=False)


def answer(name: str) -> HttpResponse:
    return JsonResponse({"name": name, "by": os.getpid()}, status=201)


def act(request: HttpRequest) -> HttpResponse:
    name = json.loads(request.body)["name"]
    rows.write(alias(), name)
    die(request, "in the view")
    return answer(name)


async def aact(request: HttpRequest) -> HttpResponse:
    name = json.loads(request.body)["name"]
    await sync_to_async(rows.write)(alias(), name)
    return answer(name)


def alias() -> str:
    from django_distlock.idempotency.conf import config

    return config().database


def outside(request: HttpRequest) -> HttpResponse:
    return act(request)


def of_its_own(request: HttpRequest) -> HttpResponse:
    return act(request)


def held(request: HttpRequest) -> HttpResponse:
    return act(request)


VIEWS = {
    "plain-out": transaction.non_atomic_requests(outside),  # the others are as they are under ATOMIC_REQUESTS
    "atomic-in": idempotent(atomic=True)(of_its_own),
    "async": transaction.non_atomic_requests(aact),
    "retry": idempotent(claim_ttl=LEASE, on_crash="retry")(of_its_own),
    "hold": idempotent(claim_ttl=LEASE)(held),
}
urlpatterns = [path(f"{name}/", csrf_exempt(view)) for name, view in VIEWS.items()]
