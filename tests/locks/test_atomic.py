"""R12 for each shape of a decorated view: where the transaction of the request lies. What other processes see of it is
proven in tests/transactions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.test import AsyncClient, Client

from django_distlock import signals
from tests.locks import views
from tests.locks.elsewhere import held_elsewhere, is_free
from tests.locks.views import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.urls("tests.locks.views")

# The lock on the handler, or below @api_view: Django's own transaction is open already, R11 keeps the lock to its end.
INSIDE = ("get", "get_directly", "drf_get", "drf_viewset_list", "drf_below_api_view")
SYNC = [shape for shape in views.LOCKED if not shape.startswith("async")]
ASYNC = [shape for shape in views.LOCKED if shape.startswith("async")]


@pytest.fixture
def order(databases: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bool]]]:
    """ATOMIC_REQUESTS; and whether a transaction was open when the lock came, while the view ran, and when it went."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    happened: list[tuple[str, bool]] = []

    def note(what: str) -> None:
        happened.append((what, connections["default"].in_atomic_block))

    def acquired(name: str, **kwargs: Any) -> None:
        if name == NAME and not happened:  # the view itself asks whether others get the lock
            note("acquired")

    def released(name: str, **kwargs: Any) -> None:
        if name == NAME:
            note("released")

    inside = views.inside

    def noting_inside() -> str:
        note("inside")
        return inside()

    monkeypatch.setattr(views, "inside", noting_inside)
    signals.lock_acquired.connect(acquired)
    signals.lock_released.connect(released)
    yield happened
    signals.lock_acquired.disconnect(acquired)
    signals.lock_released.disconnect(released)


@pytest.mark.parametrize("shape", SYNC)
def test_r12_lock_encloses_the_transaction_of_the_request(order: list[tuple[str, bool]], shape: str) -> None:
    assert Client().get(f"/{shape}/").status_code == 200
    before = shape in INSIDE
    assert order == [("acquired", before), ("inside", True), ("released", False)]
    assert is_free(NAME)


@pytest.mark.parametrize("shape", [shape for shape in SYNC if shape not in INSIDE])
def test_r12_busy_view_opens_no_transaction(order: list[tuple[str, bool]], shape: str) -> None:
    with held_elsewhere(NAME):
        order.append(("held", False))
        assert Client().get(f"/{shape}/").status_code == 503
        assert order == [("acquired", False), ("held", False)]
    assert not connections["default"].in_atomic_block


@pytest.mark.parametrize("shape", ASYNC)
@pytest.mark.parametrize("client", ["sync", "async"])
def test_r12_async_view_is_refused_in_the_words_of_django(
    order: list[tuple[str, bool]], shape: str, client: str
) -> None:
    """A transaction cannot span an async view; a locked one must not run without it in silence."""

    async def get() -> Any:
        return await AsyncClient().get(f"/{shape}/")

    with pytest.raises(RuntimeError, match=r"^You cannot use ATOMIC_REQUESTS with async views\.$"):
        Client().get(f"/{shape}/") if client == "sync" else asyncio.run(get())
    assert "inside" not in dict(order)
    assert is_free(NAME)
