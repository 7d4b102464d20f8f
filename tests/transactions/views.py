"""Locked views in every shape, for tests of ATOMIC_REQUESTS (R12)."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from rest_framework.decorators import api_view
from rest_framework.exceptions import ValidationError
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from tests.transactions.ways import Boom

if TYPE_CHECKING:
    from django_distlock import Lock

# What the view of the running test has at hand, world, fails and rival_waits, and what it noticed.
stage = SimpleNamespace()


def work(error: Exception) -> None:
    """The body of each view: write a row under the lock, with the rival outside."""
    stage.atomic = {alias: connections[alias].in_atomic_block for alias in ("default", "postgres", "mariadb")}
    stage.world.write()
    if stage.rival_waits:
        stage.world.still_inside()
    if stage.fails:
        raise error


def body(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    work(Boom())
    return HttpResponse("done")


def drf_body(request: Any) -> Response:
    """DRF makes a response of its own exceptions, and marks the transaction for rollback."""
    work(ValidationError("not like that"))
    return Response("done")


class Plain(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return body(request)


class PlainDRF(APIView):
    authentication_classes = ()

    def get(self, request: Any) -> Response:
        return drf_body(request)


class PlainViewSet(ViewSet):
    authentication_classes = ()

    def list(self, request: Any) -> Response:
        return drf_body(request)


def on_dispatch(base: type, *decorators: Any) -> Any:
    """A subclass of ``base`` whose dispatch is decorated, from the inside outwards."""
    found = type(base.__name__ + "Locked", (base,), {})
    for decorator in decorators:
        found = method_decorator(decorator, name="dispatch")(found)
    return found


def overridden_dispatch(lock: Lock) -> Any:
    class Overridden(on_dispatch(Plain, lock)):  # type: ignore[misc]
        def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            return super().dispatch(request, *args, **kwargs)

    return Overridden


def outside(lock: Lock, second: Lock) -> dict[str, Any]:
    """Here the lock is taken before the transaction of the request begins, and released after it has ended."""
    inherited = type("Inherited", (on_dispatch(View, lock),), {"get": Plain.get})
    return {
        "function": lock(body),
        "csrf_exempt_above": csrf_exempt(lock(body)),
        "csrf_exempt_below": lock(csrf_exempt(body)),
        "never_cache_below": lock(never_cache(body)),
        "stacked": second(lock(body)),
        "partial": functools.update_wrapper(functools.partial(lock(body), extra=1), lock(body)),
        "dispatch": on_dispatch(Plain, lock).as_view(),
        "dispatch_list": on_dispatch(Plain, [lock, never_cache]).as_view(),
        "dispatch_stacked": on_dispatch(Plain, lock, second).as_view(),
        "dispatch_inherited": inherited.as_view(),  # type: ignore[attr-defined]
        "dispatch_inherited_and_again": on_dispatch(inherited, second).as_view(),
        "around_as_view": lock(Plain.as_view()),
        "drf_dispatch": on_dispatch(PlainDRF, lock).as_view(),
        "drf_above_api_view": lock(api_view(["GET"])(drf_body)),
        "drf_viewset": on_dispatch(PlainViewSet, lock).as_view({"get": "list"}),
    }


def inside(lock: Lock, alias: str) -> dict[str, Any]:
    """Where the decorator cannot reach: the lock is taken inside the transaction, and kept until that has ended."""
    return {
        "get": type("OnGet", (Plain,), {"get": lock(Plain.get)}).as_view(),  # type: ignore[attr-defined]
        "overridden_dispatch": overridden_dispatch(lock).as_view(),
        "drf_below_api_view": api_view(["GET"])(lock(drf_body)),
        "drf_get": type("OnGet", (PlainDRF,), {"get": lock(PlainDRF.get)}).as_view(),  # type: ignore[attr-defined]
        "below_atomic": transaction.atomic(using=alias)(lock(body)),
        "without_wraps": lambda request: lock(body)(request),
        "bare_partial": functools.partial(lock(body), extra=1),
    }


def without(lock: Lock, alias: str) -> dict[str, Any]:
    """The user has taken the view out: no transaction is opened on that database. Other orders of decorators are in
    tests/locks/test_atomic.py."""
    out = transaction.non_atomic_requests(using=alias)
    fresh = functools.wraps(body)(functools.partial(body))  # Django marks the function itself
    return {
        "excluded_above": out(lock(fresh)),
        "excluded_dispatch_list_below": on_dispatch(Plain, [lock, out]).as_view(),
        "excluded_as_view": out(lock(Plain.as_view())),
    }
