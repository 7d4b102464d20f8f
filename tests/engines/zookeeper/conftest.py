"""A client of kazoo's own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.zookeeper.server import clerk


@pytest.fixture
def server(databases: None) -> Any:
    with clerk() as client:
        yield client
