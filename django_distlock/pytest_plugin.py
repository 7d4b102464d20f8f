"""Fixtures for pytest, which loads them through the entry point ``pytest11``. They import Django only when used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def distlock_memory() -> Iterator[None]:
    """Keep the locks of every alias in the memory of this process, for one test."""
    from .testing import override_locks

    with override_locks("memory"):
        yield


@pytest.fixture
def no_locks_left() -> Iterator[None]:
    """Fail a test that leaves a lock held."""
    from .testing import assert_no_locks_held

    yield
    assert_no_locks_held()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """Close the lock sessions before pytest-django drops the test databases, which open sessions would prevent."""
    result: Any = yield
    if fixturedef.argname == "django_db_setup":
        fixturedef.addfinalizer(_close_sessions)  # the last finalizer runs first
    return result  # type: ignore[no-any-return]


def _close_sessions() -> None:
    from .testing import close_lock_sessions

    close_lock_sessions()
