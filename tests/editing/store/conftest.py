"""Articles and their edit locks on each database, at each level of isolation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connections

from tests.editing.store.desks import emptied
from tests.support.places import ALIASES, EVERYWHERE, Place, isolate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=list(ALIASES))
def alias(request: pytest.FixtureRequest, databases: None) -> Iterator[str]:
    yield from emptied(request.param)


@pytest.fixture(params=EVERYWHERE, ids=str)
def place(request: pytest.FixtureRequest, databases: None) -> Iterator[Place]:
    found: Place = request.param
    isolate(found)
    for _ in emptied(found.alias):
        yield found
    connections[found.alias].close()
