"""A leader that ZooKeeper does not answer steps down before another one can lead, and stands again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import eventually
from tests.engines.zookeeper.server import SESSION, USING, address, behind, clerk, nodes
from tests.faults.proxy import Proxy
from tests.faults.test_zookeeper import get
from tests.locks.leader.test_faults import PATIENCE, Office
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.locks.leader import Term

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("databases")]


@pytest.fixture
def proxy(settings: Any) -> Iterator[Proxy]:
    with Proxy(*address()) as proxy:
        behind(settings, proxy)
        yield proxy


def test_in_a_partition_it_steps_down_before_another_one_leads(name: str, proxy: Proxy) -> None:
    told: list[float] = []

    class Timed(Office):
        def _demoted(self, term: Term) -> None:
            told.append(time.monotonic())
            super()._demoted(term)

    office = Timed(name, USING)
    with office.leader as leader:
        assert leader.elected(PATIENCE)
        with Child(get, name) as rival, clerk() as server:
            assert rival.hear() == "asking"
            eventually(lambda: len(nodes(server, name)) == 2, "no waiter")
            proxy.blackhole()
            assert office.demoted.wait(PATIENCE)
            assert office.reason == "lost"
            granted = rival.hear()
            within(SESSION / 6 - (granted - told[0]), 0, what="what was lacking to stop the work")
        proxy.heal()
        eventually(lambda: leader.leading, "it does not lead again")
    assert office.elections == 2
