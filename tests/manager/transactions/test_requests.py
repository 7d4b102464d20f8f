"""R12 where a request meets something else: a TestCase around it, a busy lock, a WSGI server in several threads."""

from __future__ import annotations

import threading
import unittest
import unittest.mock
from typing import TYPE_CHECKING, Any

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import Client, TestCase
from django.test.client import RequestFactory
from django.urls import clear_url_caches, path
from rest_framework.exceptions import ValidationError

from django_distlock import advisory_lock
from tests.manager.transactions import rows, views
from tests.manager.transactions.views import Boom, stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.manager.transactions.world import World

pytestmark = pytest.mark.urls("tests.manager.transactions.views")


@pytest.fixture
def atomic_requests(one_world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setitem(connections.settings[one_world.alias], "ATOMIC_REQUESTS", True)
    yield one_world
    clear_url_caches()


def use(monkeypatch: pytest.MonkeyPatch, view: Any) -> None:
    """Serve ``view`` at /view/."""
    monkeypatch.setattr(views, "urlpatterns", [path("view/", view)])
    clear_url_caches()


@pytest.mark.parametrize("shape", ["function", "stacked", "dispatch", "drf_dispatch", "drf_above_api_view"])
def test_r12_failed_request_inside_a_test_case(atomic_requests: World, shape: str) -> None:
    """The transaction around a TestCase is not the request's. As without a lock, what the request wrote is rolled back
    and the test goes on; DRF marks the innermost transaction, which must not be that of the test."""
    world = atomic_requests
    drf = shape.startswith("drf")

    class Case(TestCase):
        databases = frozenset({world.alias})

        def test_request(self) -> None:
            rows.write(world.alias, world.name + "-mine")
            stage.set(world, ValidationError if drf else Boom)
            client = Client(raise_request_exception=False)
            with unittest.mock.patch.object(world, "still_inside"):
                response = client.get(f"/{world.using}/{shape}/", {"name": world.name})
            assert response.status_code == (400 if drf else 500)
            assert rows.count(world.alias, world.name) == 0
            assert rows.count(world.alias, world.name + "-mine") == 1

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert not result.errors, result.errors[0][1]
    assert not result.failures, result.failures[0][1]
    assert result.testsRun == 1


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
def test_r12_on_busy_runs_in_the_transaction_of_the_request(
    atomic_requests: World, monkeypatch: pytest.MonkeyPatch, fails: bool, stacked: bool
) -> None:
    """Django opened none around a locked view; what is called instead of the view must have it all the same."""
    world = atomic_requests
    atomic: list[bool] = []

    def instead(request: HttpRequest) -> HttpResponse:
        atomic.append(world.connection.in_atomic_block)
        world.write()
        if fails:
            raise Boom
        return HttpResponse("busy", status=409)

    def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError("ran although the lock was busy")

    locked: Any = advisory_lock(world.name + "-busy", using=world.using, timeout=0, on_busy=instead)(view)
    if stacked:
        locked = advisory_lock(world.name + "-outer", using=world.using)(locked)
    use(monkeypatch, locked)
    world.rival.say(["wait", world.using, world.name + "-busy", world.alias])
    assert world.rival.hear() == "waiting"
    world.rival.hear()
    try:
        response = Client(raise_request_exception=False).get("/view/")
    finally:
        world.rival.say(["release"])
        world.rival.hear()
    assert response.status_code == (500 if fails else 409)
    assert atomic == [True]
    assert rows.count(world.alias, world.name) == (0 if fails else 1)


def test_r12_eight_requests_at_once_write_one_row(atomic_requests: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check, then write, under the lock and in the transaction of the request: by Django's WSGI handler in eight
    threads at one barrier."""
    world = atomic_requests
    barrier = threading.Barrier(8)

    def sign_up(request: HttpRequest) -> HttpResponse:
        if rows.count(world.alias, world.name):
            return HttpResponse("taken", status=409)
        world.write()
        return HttpResponse("made", status=201)

    use(monkeypatch, advisory_lock(world.name, using=world.using)(sign_up))
    handler, statuses = WSGIHandler(), []

    def request() -> None:
        environ = RequestFactory().get("/view/").environ
        barrier.wait(10)
        try:
            response = handler(environ, lambda status, headers: statuses.append(status[:3]))
            response.close()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=request) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == ["201"] + ["409"] * 7
    assert rows.count(world.alias, world.name) == 1


def test_r12_fault_without_a_lock(atomic_requests: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without a lock, both requests stopped between check and write: two rows. So the test above can fail. On
    SQLite, where transactions are IMMEDIATE here, the one writer's turn hides the race."""
    world = atomic_requests
    hidden = world.alias == "default"
    checked = threading.Barrier(2)

    def sign_up(request: HttpRequest) -> HttpResponse:
        if rows.count(world.alias, world.name):
            return HttpResponse("taken", status=409)
        if not hidden:
            checked.wait(10)
        world.write()
        return HttpResponse("made", status=201)

    use(monkeypatch, sign_up)

    def request() -> None:
        try:
            Client().get("/view/")
        finally:
            connections.close_all()

    threads = [threading.Thread(target=request) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows.count(world.alias, world.name) == (1 if hidden else 2)
