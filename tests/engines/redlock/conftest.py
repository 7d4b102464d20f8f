"""The alias "five": five Redis servers, each behind a proxy of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from tests.engines.redlock.nodes import Nodes, five_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.keys import LockKey


@pytest.fixture
def nodes(settings: Any, databases: None) -> Iterator[Nodes]:
    """With time to answer: a node that is late is left out, and keeps what it has."""
    with five_nodes(settings) as nodes:
        yield nodes
        registry.close()


@pytest.fixture
def key(nodes: Nodes, name: str) -> LockKey:
    """Of the test's name."""
    site_key.load()
    return registry.entry(nodes.using).key(name)


@pytest.fixture
def lead(key: LockKey) -> int:
    """The node at which waiters stand in line."""
    return key.digest[0] % 5


@pytest.fixture
def engine(nodes: Nodes, name: str) -> Any:
    """The backend of "five", connected to all nodes."""
    nodes.connect(name)
    return registry.entry(nodes.using).backend
