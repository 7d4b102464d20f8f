"""The alias "five": five Redis servers, each behind a proxy of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.engines.redlock.nodes import Nodes, five_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def nodes(settings: Any, databases: None) -> Iterator[Nodes]:
    """With time to answer: a node that is late is left out, and keeps what it has."""
    with five_nodes(settings) as nodes:
        yield nodes


@pytest.fixture
def patient_nodes(settings: Any, databases: None) -> Iterator[Nodes]:
    """No request of theirs is sent a second time while a test lets it wait."""
    with five_nodes(settings, node_timeout=15) as nodes:
        yield nodes


@pytest.fixture
def lead(nodes: Nodes, name: str) -> int:
    """The node at which waiters of the test's name stand in line."""
    return nodes.key(name).digest[0] % 5


@pytest.fixture
def engine(nodes: Nodes, name: str) -> Any:
    """The backend of "five", connected to all nodes."""
    nodes.connect(name)
    return nodes.engine
