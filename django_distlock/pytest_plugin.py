"""Fixtures for pytest, found through the entry point ``pytest11``. Nothing is imported until Django is set up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def distlock_memory() -> Iterator[None]:
    """Every lock alias in the memory of this process, for one test."""
    from .testing import override_locks

    with override_locks("memory"):
        yield


@pytest.fixture
def no_locks_left() -> Iterator[None]:
    """The test fails if it leaves a lock held."""
    from .testing import assert_no_locks_held

    yield
    assert_no_locks_held()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """Lock sessions are closed before pytest-django drops the test databases: an open one would prevent that."""
    result: Any = yield
    if fixturedef.argname == "django_db_setup":
        fixturedef.addfinalizer(_close_sessions)  # what is added last is done first
    return result  # type: ignore[no-any-return]


def _close_sessions() -> None:
    from .testing import close_lock_sessions

    close_lock_sessions()
