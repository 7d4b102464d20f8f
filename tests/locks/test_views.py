"""Locked views of every shape under Django's own handlers, sync and async: the lock is held while the view runs, and
only then."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.test import AsyncClient, Client
from django.urls import resolve

from tests.locks import views
from tests.locks.elsewhere import held_elsewhere, is_free
from tests.locks.views import NAME, SECOND

pytestmark = pytest.mark.urls("tests.locks.views")
FOUR = ["function", "async", "dispatch", "async_dispatch"]


def get(path: str, crossed: bool = False) -> tuple[int, str]:
    """Status and text, by the client of the view's own kind; ``crossed``: by the other one."""
    plain = path.startswith("async") == crossed
    response: Any = (Client().get if plain else async_to_sync(AsyncClient().get))(f"/{path}/")
    return response.status_code, response.content.decode().strip('"')


def check(path: str, crossed: bool = False) -> None:
    assert get(path, crossed) == (200, NAME)
    with held_elsewhere(NAME):
        status, text = get(path, crossed)
    assert status == 503
    assert NAME not in text
    assert is_free(NAME)


@pytest.mark.parametrize("shape", views.LOCKED)
def test_r1_lock_is_held_while_the_view_runs_and_a_busy_view_is_not_entered(shape: str) -> None:
    check(shape)
    # what Django asks the view: how to call it, whether it is exempt, and what its class is
    view: Any = resolve(f"/{shape}/").func
    assert iscoroutinefunction(view) == shape.startswith("async")
    exempt = "csrf_exempt" in shape or shape.startswith("drf")
    assert (Client(enforce_csrf_checks=True).post(f"/{shape}/").status_code == 403) != exempt
    if "dispatch" in shape or "get" in shape or "as_view" in shape:
        assert hasattr(view, "cls" if "drf" in shape else "view_class")


@pytest.mark.parametrize("shape", FOUR)
def test_r1_also_under_the_handler_of_the_other_kind(shape: str) -> None:
    check(shape, crossed=True)


@pytest.mark.parametrize("shape", views.STACKED)
def test_r7_stacked_locks_are_all_held_and_a_busy_one_leaves_none(shape: str) -> None:
    assert get(shape) == (200, f"{NAME},{SECOND}")
    for name, other in ((NAME, SECOND), (SECOND, NAME)):
        with held_elsewhere(name):
            assert get(shape)[0] == 503
            assert is_free(other)
        assert is_free(name)


def test_refused_method_does_not_ask_for_the_lock() -> None:
    """require_POST above the lock, as the documentation says."""
    with held_elsewhere(NAME):
        assert get("post_only")[0] == 405
        assert Client().post("/post_only/").status_code == 503
