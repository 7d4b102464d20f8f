"""A cluster that the tests of a module share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engines.redis.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
