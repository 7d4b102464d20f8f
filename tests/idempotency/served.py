"""Views of the site that real servers run. A request may ask for the death of its worker."""

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
from django_distlock.idempotency.conf import config
from django_distlock.idempotency.signals import key_claimed
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE = 0.5  # seconds
POINTS = ("before the claim", "after the claim", "in the view", "after commit", "before the answer")


def die(request: HttpRequest, point: str) -> None:
    if request.headers.get("X-Die") == point:
        os.kill(os.getpid(), signal.SIGKILL)


def outside(get_response: Callable[[HttpRequest], Any]) -> Any:
    """Above everything: nothing has been claimed yet; nothing has been sent yet."""

    def middleware(request: HttpRequest) -> Any:
        die(request, "before the claim")
        response = get_response(request)
        die(request, "before the answer")
        return response

    return middleware


key_claimed.connect(lambda request, **facts: die(request, "after the claim"), weak=False)


def written(request: HttpRequest) -> HttpResponse:
    name = json.loads(request.body)["name"]
    rows.write(config().database, name)
    return JsonResponse({"name": name, "by": os.getpid()}, status=201)


def act(request: HttpRequest) -> HttpResponse:
    answer = written(request)
    # what becomes of the answer is not settled, but in the exactly-once mode
    transaction.on_commit(lambda: die(request, "after commit"), using=config().database)
    die(request, "in the view")
    return answer


async def aact(request: HttpRequest) -> HttpResponse:
    return await sync_to_async(written)(request)


VIEWS = {
    "plain-out": transaction.non_atomic_requests(lambda request: act(request)),  # the others: under ATOMIC_REQUESTS
    "atomic-in": idempotent(atomic=True)(lambda request: act(request)),
    "async": transaction.non_atomic_requests(aact),
    "retry": idempotent(claim_ttl=LEASE, on_crash="retry")(lambda request: act(request)),
    "hold": idempotent(claim_ttl=LEASE)(lambda request: act(request)),
}
urlpatterns = [path(f"{name}/", csrf_exempt(view)) for name, view in VIEWS.items()]
