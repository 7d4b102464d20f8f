"""A client of kazoo's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.engines.zookeeper.server import clerk

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server(databases: None) -> Iterator[Any]:
    with clerk() as client:
        yield client
