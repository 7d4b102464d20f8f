"""The proxy of the fault tests also counts round trips; a Redis server of a test's own may be hurt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.manager.registry import registry
from tests.conftest import connect
from tests.engines.redis.cluster import Cluster
from tests.engines.redis.server import Own
from tests.faults.conftest import proxied
from tests.support.unhurried import give_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["proxied"]


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are not about the half second that a caller has who does not wait."""
    give_time(monkeypatch.setattr)


@pytest.fixture(autouse=True)
def connected(request: pytest.FixtureRequest, nothing_left: None) -> None:
    """As in the contract tests: see there."""
    if {"using", "databases"} <= set(request.fixturenames) and not request.node.get_closest_marker("cold"):
        request.getfixturevalue("databases")
        connect(request.getfixturevalue("using"))


@pytest.fixture
def alias(settings: Any) -> Iterator[Callable[..., None]]:
    """``alias(using, like, **options)``: from here on with the backend of the alias ``like`` and these OPTIONS."""

    def change(using: str, like: str | None = None, **options: Any) -> None:
        backend = {**settings.DISTLOCK[like or using], "OPTIONS": options}
        settings.DISTLOCK = {**settings.DISTLOCK, using: backend}
        registry.reset()

    yield change
    registry.reset()


@pytest.fixture
def own(databases: None, alias: Any, tmp_path: Path) -> Iterator[Own]:
    """The server behind the alias "redis", which no other test asks, counts on or sees stop."""
    with Own(tmp_path) as own:
        alias("redis", url=own.url)
        yield own
        registry.close()


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Own]:
    """A second one, which no alias knows."""
    with Own(tmp_path / "another") as another:
        yield another


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One that the tests of a module share."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
