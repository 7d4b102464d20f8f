"""R12: a decorated view takes the lock before the transaction of its request, and releases it after the commit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.test import Client
from rest_framework.exceptions import ValidationError

from django_distlock import signals
from tests.manager.transactions import rows, views
from tests.manager.transactions.views import Boom, stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.manager.transactions.world import World

pytestmark = pytest.mark.urls("tests.manager.transactions.views")


@pytest.fixture
def order(one_world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """ATOMIC_REQUESTS for the database of the lock; and what happened to the lock, with the state of the transaction
    and the number of committed rows at that moment."""
    world = one_world
    monkeypatch.setitem(connections.settings[world.alias], "ATOMIC_REQUESTS", True)
    happened: list[Any] = []
    counting = connections[world.alias].copy()

    def committed() -> int:
        with counting.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM distlock_written WHERE name = %s", [world.name])
            return int(cursor.fetchone()[0])

    def receiver(signal: Any, name: str, **kwargs: Any) -> None:
        if name == world.name:
            what = "acquired" if signal is signals.lock_acquired else "released"
            happened.append((what, connections[world.alias].in_atomic_block, committed()))

    heard = (signals.lock_acquired, signals.lock_released)
    for signal in heard:
        signal.connect(receiver)
    yield happened
    for signal in heard:
        signal.disconnect(receiver)
    counting.close()


def get(world: World, shape: str, fails: type[BaseException] | None = None) -> int:
    stage.set(world, fails)
    client = Client(raise_request_exception=False)
    response = client.get(f"/{world.using}/{shape}/", {"name": world.name})
    world.ended()
    return response.status_code


@pytest.mark.parametrize("shape", views.OUTSIDE)
def test_r12_lock_is_taken_before_the_transaction_and_released_after_it(
    one_world: World, order: list[Any], shape: str
) -> None:
    world = one_world
    assert get(world, shape) == 200
    world.check_rival_came_in(1)
    assert stage.atomic[world.alias], "the request had no transaction"
    assert order == [("acquired", False, 0), ("released", False, 1)]
    world.check_connection_is_clean()


@pytest.mark.parametrize("shape", views.OUTSIDE)
def test_r12_exception_rolls_back_what_was_written_under_the_lock(
    one_world: World, order: list[Any], shape: str
) -> None:
    """A DRF exception becomes a response; DRF itself marks the transaction for rollback."""
    world = one_world
    drf = shape.startswith("drf")
    assert get(world, shape, ValidationError if drf else Boom) == (400 if drf else 500)
    world.check_rival_came_in(0)
    assert order == [("acquired", False, 0), ("released", False, 0)]
    world.check_connection_is_clean()


@pytest.mark.parametrize("shape", views.INSIDE)
@pytest.mark.parametrize("fails", [False, True])
def test_r12_where_the_decorator_cannot_reach_r11_keeps_the_lock(
    one_world: World, order: list[Any], shape: str, fails: bool
) -> None:
    world = one_world
    drf = shape in ("below_api_view", "drf_get")
    error = (ValidationError if drf else Boom) if fails else None
    assert get(world, shape, error) == (200 if not fails else 400 if drf else 500)
    world.check_rival_came_in(0 if fails else 1)
    assert stage.atomic[world.alias]
    assert order[0] == ("acquired", True, 0)
    assert order[1][0] == "released"
    world.check_connection_is_clean()


@pytest.mark.parametrize("shape", views.WITHOUT)
def test_r12_non_atomic_requests_is_remembered(one_world: World, order: list[Any], shape: str) -> None:
    """What was written stays although the view failed: the user wanted no transaction."""
    world = one_world
    assert get(world, shape, Boom) == 500
    world.check_rival_came_in(1)
    assert not stage.atomic[world.alias], "a transaction was opened although the view was taken out"
    assert order == [("acquired", False, 0), ("released", False, 1)]


def test_r12_excluding_one_database_leaves_the_others(
    make_world: Any, monkeypatch: pytest.MonkeyPatch, databases: None
) -> None:
    """Two databases with ATOMIC_REQUESTS; a view is taken out of that of one of them."""
    world = make_world("postgres", "postgres")
    for alias in ("postgres", "default"):
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)
    for shape in ("excluded_above", "excluded_below", "excluded_dispatch_list_below"):
        stage.set(world)
        world.name += shape
        Client().get(f"/postgres/{shape}/", {"name": world.name})
        world.check_rival_came_in(1)
        world.leave()
        assert stage.atomic == {"default": True, "postgres": False, "mariadb": False}
        world = make_world("postgres", "postgres", shape)


@pytest.mark.parametrize("shape", ["function", "stacked", "dispatch"])
def test_r12_every_database_with_atomic_requests(
    one_world: World, order: list[Any], monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    world = one_world
    for alias in ("default", "postgres", "mariadb"):
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)
    assert get(world, shape) == 200
    world.check_rival_came_in(1)
    assert stage.atomic == {"default": True, "postgres": True, "mariadb": True}
    assert order == [("acquired", False, 0), ("released", False, 1)]


@pytest.mark.parametrize("shape", ["function", "dispatch", "get", "excluded_above"])
def test_r12_without_atomic_requests_nothing_is_opened(one_world: World, shape: str) -> None:
    world = one_world
    assert get(world, shape, Boom) == 500
    world.check_rival_came_in(1)
    assert not any(stage.atomic.values())


@pytest.mark.parametrize("shape", ["function", "stacked", "partial", "dispatch", "around_as_view"])
def test_r12_plain_call_opens_nothing(one_world: World, order: list[Any], shape: str, rf: Any) -> None:
    """Called by other code, as a function: nobody took a transaction away that would have to be opened."""
    world = one_world
    stage.set(world)
    request = rf.get("/", {"name": world.name})
    views.VIEWS[world.using][shape](request)
    world.check_rival_came_in(1)
    assert not stage.atomic[world.alias]


def test_r12_plain_call_from_a_view_that_is_not_locked(
    one_world: World, order: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django opened the transaction of the resolved view; the locked one that it calls adds none."""
    world = one_world
    inner = views.VIEWS[world.using]["function"]

    def outer(request: Any) -> Any:
        return inner(request)

    monkeypatch.setattr(views, "urlpatterns", [views.path("calls/", outer)])
    from django.urls import clear_url_caches

    clear_url_caches()
    try:
        stage.set(world)
        assert Client().get("/calls/", {"name": world.name}).status_code == 200
    finally:
        clear_url_caches()
    world.check_rival_came_in(1)
    assert order[0] == ("acquired", True, 0)


def test_r12_naive_decorator_lets_the_rival_in_before_the_commit(one_world: World, order: list[Any]) -> None:
    """The fault: the engine's own lock in a view, inside the transaction of the request."""
    from django_distlock.manager.registry import registry
    from django_distlock.records import Claim
    from tests.faults.server import key_of

    world = one_world
    stage.set(world)
    backend, key = registry.entry(world.using).backend, key_of(world.using, world.name)

    def naive(request: Any) -> Any:
        grant = backend.try_acquire(
            Claim(key=key, ttl=30.0 if backend.supports_ttl else None, token="naive", answer_by=math.inf)
        )
        assert grant is not None
        try:
            response = views.body(request)
        finally:
            backend.release(grant)
        __, count = world.hear_grant()
        assert count == 0, "shown: the next holder does not see what was written under the lock"
        return response

    view: Any = naive
    from django.urls import clear_url_caches

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "urlpatterns", [views.path("naive/", view)])
        clear_url_caches()
        assert Client().get("/naive/", {"name": world.name}).status_code == 200
    clear_url_caches()
    assert rows.count(world.alias, world.name) == 1
