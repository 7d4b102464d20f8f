"""A cluster that the tests of a module share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.redis.cluster import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
