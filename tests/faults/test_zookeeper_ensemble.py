"""Three ZooKeeper servers whose leader is killed under load: what a ledger outside of them says."""

from __future__ import annotations

import contextlib
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings

from django_distlock import DistlockError, advisory_lock
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.own_servers import EnsembleServer, ensemble, needs_programs
from tests.engines.zookeeper.server import USING, use
from tests.faults.history import History, Journal
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [pytest.mark.tier2, pytest.mark.timeout(300), pytest.mark.usefixtures("databases"), needs_programs]
WORKERS, HOLDS = 4, 30
PATIENCE = 60.0  # seconds for an election on a busy machine


def work(link: Any, name: str, hosts: str, ledger: str, over: str) -> None:
    """Take the lock again and again, and write into the ledger, until there is a file ``over``."""
    use(settings, hosts=hosts, session_timeout=6)
    journal = Journal(ledger)
    link.say("ready")
    while not Path(over).exists():
        with contextlib.suppress(DistlockError), journal.hold(advisory_lock(name, using=USING, timeout=5)):
            time.sleep(0.002)
    registry.close()
    link.say("done")


def leader_of(servers: Sequence[EnsembleServer]) -> EnsembleServer | None:
    return next((server for server in servers if server.mode() == "leader"), None)


def test_r1_r21_the_leader_is_killed_under_load(name: str, tmp_path: Path) -> None:
    """Nobody is in beside another one, and the fence rises from holder to holder, whoever leads."""
    ledger, over = tmp_path / "ledger", tmp_path / "over"
    ledger.touch()

    def holds() -> int:
        return ledger.read_text().count('"granted"')

    def goes_on() -> None:
        before = holds()
        eventually(lambda: holds() >= before + HOLDS, "nobody gets the lock", PATIENCE, pause=0.05)

    with ensemble() as servers, ExitStack() as stack:
        hosts = ",".join(f"127.0.0.1:{server.server['port']}" for server in servers)
        workers = [stack.enter_context(Child(work, name, hosts, str(ledger), str(over))) for _ in range(WORKERS)]
        for worker in workers:
            assert worker.hear() == "ready"
        goes_on()
        for _ in range(2):
            leader = leader_of(servers)
            assert leader is not None
            leader.kill()
            goes_on()
            leader.start()
            eventually(leader.mode, "it does not come back", PATIENCE, pause=0.1)
            goes_on()
        over.touch()
        assert [worker.hear() for worker in workers] == ["done"] * WORKERS
    history = History.read(ledger)
    assert history.check() == []
    assert {hold.pid for hold in history.holds} == {worker.pid for worker in workers}
