"""What engines have no part in, once, on memory: the promises of the layer that they share."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from django_distlock import advisory_lock
from django_distlock.manager.registry import registry
from tests.contract import watching
from tests.contract.conftest import face, me, other

__all__ = ["face", "me", "other"]


@pytest.fixture
def using() -> str:
    return "memory"


@pytest.fixture
def lock(name: str) -> Any:
    return advisory_lock(name, using="memory")


@pytest.fixture
def backend() -> Any:
    return registry.entry("memory").backend


@pytest.fixture
def take_away() -> Any:
    """Has an operator take a lock away from its holder, without a word to it."""
    return partial(watching.take_away, "memory")
