"""R12: a decorated view takes the lock before the transaction of its request, and releases it after the commit. All
shapes of views on SQLite, one on each kind of engine."""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import Client, TestCase
from django.urls import clear_url_caches, path

from django_distlock import advisory_lock, signals
from tests.transactions import rows, views
from tests.transactions.views import stage
from tests.transactions.ways import Boom
from tests.transactions.world import World, check_connections_are_clean, in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Serve = Callable[[Any], None]

pytestmark = pytest.mark.urls("tests.transactions.test_requests")
urlpatterns: list[Any] = []


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(view)`` at /view/."""

    def put(view: Any) -> None:
        urlpatterns[:] = [path("view/", view)]
        clear_url_caches()

    yield put
    urlpatterns.clear()
    clear_url_caches()


def shapes(world: World) -> dict[str, dict[str, Any]]:
    lock = world.lock()
    return {
        "outside": views.outside(lock, world.lock("-second")),
        "inside": views.inside(lock, world.alias),
        "without": views.without(lock, world.alias),
    }


def names(kind: str) -> list[str]:
    lock = advisory_lock("any", using="memory")
    return list(getattr(views, kind)(lock, lock if kind == "outside" else "default"))


def get(world: World, *, fails: bool = False, rival_waits: bool = True) -> int:
    stage.world, stage.fails, stage.rival_waits = world, fails, rival_waits
    response = Client(raise_request_exception=False).get("/view/")
    world.ended()
    return response.status_code


def atomic_requests(monkeypatch: pytest.MonkeyPatch, alias: str) -> None:
    monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)


@pytest.fixture
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """ATOMIC_REQUESTS for the database of the lock; and what happened to the lock, with the state of the transaction
    and the number of committed rows at that moment."""
    kind = "lease_world" if "lease_world" in request.fixturenames else "each_world"
    world: World = request.getfixturevalue(kind)
    happened: list[Any] = []

    def receiver(signal: Any, name: str, **facts: Any) -> None:
        if name == world.name:
            what = "acquired" if signal is signals.lock_acquired else "released"
            happened.append((what, world.connection.in_atomic_block, in_thread(world.written)))

    atomic_requests(monkeypatch, world.alias)
    signals.lock_acquired.connect(receiver)
    signals.lock_released.connect(receiver)
    yield happened
    signals.lock_acquired.disconnect(receiver)
    signals.lock_released.disconnect(receiver)


def encloses(world: World, serve: Serve, order: list[Any], kind: str, shape: str) -> None:
    """Twice: a request that fails, of which nothing stays, and one that does not."""
    serve(shapes(world)[kind][shape])
    for seen, fails in enumerate((True, False)):
        assert get(world, fails=fails) == (200 if not fails else 400 if shape.startswith("drf") else 500)
        world.check_rival_came_in(seen)
        assert stage.atomic[world.alias], "the request had no transaction"
        assert [what for what, *_ in order] == ["acquired", "released"]
        assert order[0] == ("acquired", kind == "inside", 0)
        assert kind == "inside" or order[1] == ("released", False, seen)
        check_connections_are_clean()
        world.again()
        order.clear()


@pytest.mark.parametrize("shape", names("outside"))
def test_r12_lock_is_taken_before_the_transaction_and_released_after_it(
    lease_world: World, serve: Serve, order: list[Any], shape: str
) -> None:
    encloses(lease_world, serve, order, "outside", shape)


@pytest.mark.parametrize("shape", names("inside"))
def test_r12_where_the_decorator_cannot_reach_r11_keeps_the_lock(
    lease_world: World, serve: Serve, order: list[Any], shape: str
) -> None:
    encloses(lease_world, serve, order, "inside", shape)


def test_r12_on_each_engine(each_world: World, serve: Serve, order: list[Any]) -> None:
    encloses(each_world, serve, order, "outside", "dispatch_stacked")


@pytest.mark.parametrize("shape", names("without"))
def test_r12_non_atomic_requests_is_remembered(lease_world: World, serve: Serve, order: list[Any], shape: str) -> None:
    """What was written stays although the view failed: the user wanted no transaction."""
    world = lease_world
    serve(shapes(world)["without"][shape])
    assert get(world, fails=True) == 500
    world.check_rival_came_in(1)
    assert not stage.atomic[world.alias], "a transaction was opened although the view was taken out"
    assert order == [("acquired", False, 0), ("released", False, 1)]


def test_r12_several_databases_with_atomic_requests(postgres: World, serve: Serve, monkeypatch: Any) -> None:
    """A view has a transaction on each of them, and may be taken out of that of one."""
    for alias in ("postgres", "default"):
        atomic_requests(monkeypatch, alias)
    found = shapes(postgres)
    for seen, shape in enumerate(["stacked", "excluded_above", "excluded_dispatch_list_below"], 1):
        serve({**found["outside"], **found["without"]}[shape])
        assert get(postgres) == 200
        postgres.check_rival_came_in(seen)
        assert stage.atomic == {"default": True, "postgres": shape == "stacked", "mariadb": False}
        postgres.again()


def test_r12_nothing_is_opened_that_nobody_asked_for(
    lease_world: World, serve: Serve, rf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ATOMIC_REQUESTS; nor with it where the view is called as a function by other code."""
    found = shapes(lease_world)
    for seen, view in enumerate([found["outside"]["function"], found["inside"]["get"]], 1):
        serve(view)
        assert get(lease_world, fails=True) == 500
        assert not any(stage.atomic.values())
        lease_world.check_rival_came_in(seen)
        lease_world.again()
    atomic_requests(monkeypatch, lease_world.alias)
    stage.fails = stage.rival_waits = False
    for shape in ("function", "stacked", "partial", "dispatch", "around_as_view"):
        found["outside"][shape](rf.get("/"))
        assert not any(stage.atomic.values()), shape


@pytest.mark.parametrize("shape", ["function", "drf_dispatch"])
def test_r12_failed_request_inside_a_test_case(lease_world: World, serve: Serve, order: list[Any], shape: str) -> None:
    """The transaction around a TestCase is not the request's. As without a lock, what the request wrote is rolled back
    and the test goes on; DRF marks the innermost transaction, which must not be that of the test."""
    world = lease_world
    serve(shapes(world)["outside"][shape])

    class Case(TestCase):
        databases = frozenset({world.alias})

        def test_request(self) -> None:
            rows.write(world.alias, world.name + "-mine")
            assert get(world, fails=True, rival_waits=False) == (400 if shape.startswith("drf") else 500)
            assert world.written() == 0
            assert rows.count(world.alias, world.name + "-mine") == 1

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert [trace for _, trace in (*result.errors, *result.failures)] == []
    assert result.testsRun == 1


@pytest.mark.parametrize("stacked", [False, True])
def test_r12_on_busy_runs_in_the_transaction_of_the_request(
    lease_world: World, serve: Serve, order: list[Any], stacked: bool
) -> None:
    """Django opened none around a locked view; what is called instead of the view must have it all the same."""
    world, fails = lease_world, [True, False]

    def instead(request: HttpRequest) -> HttpResponse:
        assert world.connection.in_atomic_block
        world.write()
        if fails.pop(0):
            raise Boom
        return HttpResponse("busy", status=409)

    locked: Any = world.lock("-busy", timeout=0, on_busy=instead)(views.body)
    serve(world.lock("-outer")(locked) if stacked else locked)
    with world.busy("-busy"):
        assert [get(world), get(world)] == [500, 409]
    assert world.written() == 1
