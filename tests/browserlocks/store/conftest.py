"""Names on each database, at each level of isolation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browserlocks.store.tabs import forget_everything, new_id
from tests.support.places import ALIASES, EVERYWHERE, Place, isolate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=EVERYWHERE, ids=str)
def place(request: pytest.FixtureRequest, databases: None) -> Iterator[Place]:
    """Each database and level of isolation in turn, without locks."""
    found: Place = request.param
    isolate(found)
    forget_everything(found.alias)
    yield found
    forget_everything(found.alias)


@pytest.fixture(params=list(ALIASES))
def alias(request: pytest.FixtureRequest, databases: None) -> Iterator[str]:
    """Each database in turn, without locks."""
    forget_everything(request.param)
    yield request.param
    forget_everything(request.param)


@pytest.fixture
def name() -> str:
    return f"cart:{new_id()}"
