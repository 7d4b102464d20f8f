"""R5 on the caller's own connection: ended if the server hangs, and only then."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from django.db import connections, transaction

from django_distlock import BackendUnavailable, LockTimeout, advisory_lock
from django_distlock.backends.postgres import statements
from django_distlock.backends.postgres.transaction import RETREAT
from django_distlock.manager.registry import registry
from tests.faults.proxy import Proxy
from tests.manager.transactions import rows
from tests.manager.transactions.reconnecting import address
from tests.support.timing import within

if TYPE_CHECKING:
    from tests.manager.transactions.world import World

pytestmark = [pytest.mark.alone, pytest.mark.tier2]


@pytest.fixture(autouse=True)
def unhurried() -> None:
    """Here the time of the server is what is tested."""


def test_r5_busy_process_does_not_cost_the_user_his_transaction(postgres: World, busy: str) -> None:
    """Threads of this process fight for the interpreter while waits run out: late they may be, the connection stays."""
    world = postgres
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(2000))

    burners = [threading.Thread(target=burn) for _ in range(6)]
    for thread in burners:
        thread.start()
    try:
        with transaction.atomic("postgres"):
            pid = rows.server_id("postgres")
            for _ in range(4):
                with pytest.raises(LockTimeout):
                    advisory_lock(busy, using="postgres").acquire(timeout=0.55)
            world.write()
            assert rows.server_id("postgres") == pid
    finally:
        stop.set()
        for thread in burners:
            thread.join()
    assert rows.count("postgres", world.name) == 1


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_r5_server_that_hangs_ends_the_callers_connection_in_time(postgres: World, busy: str, answered: int) -> None:
    """It acknowledges and never answers: to the first question, to the wait after it, or to the way back to the
    savepoint. The transaction is lost with its connection, the caller is not."""
    world = postgres
    settings = connections["postgres"].settings_dict
    took: list[float] = []

    def work() -> None:
        with transaction.atomic("postgres"):
            world.write()
            proxy.swallow(1 + answered)
            started = time.monotonic()
            try:
                advisory_lock(busy, using="postgres").acquire(timeout=0.6)
            finally:
                took.append(time.monotonic() - started)
                # atomic() connects again; were the wait itself cut off, that would be the request that is swallowed
                proxy.heal()

    registry.entry("postgres").backend.close()  # nothing is known of the name: it is tried before it is waited for
    with (
        Proxy(settings["HOST"], int(settings["PORT"])) as proxy,
        address("postgres", "127.0.0.1", proxy.port),
        pytest.raises(BackendUnavailable, match=r"did not answer in time.*transaction rolled back"),
    ):
        work()
    # who has answered that the wait is over has RETREAT for the way back
    within(took[0], 0.65 + (answered == 2) * RETREAT, what=f"took {took[0]:.3f} s")
    assert rows.count("postgres", world.name) == 0
    world.check_connection_is_clean()


def test_r5_server_that_is_late_on_the_way_back_keeps_the_transaction(
    postgres: World, busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has said that the wait is over, and then it does not get a processor for longer than it may be silent."""
    world = postgres
    monkeypatch.setattr(statements, "SILENT", 0.08)  # the wait itself may end late, too
    settings = connections["postgres"].settings_dict
    with (
        Proxy(settings["HOST"], int(settings["PORT"])) as proxy,
        address("postgres", "127.0.0.1", proxy.port),
        transaction.atomic("postgres"),
    ):
        world.write()
        asked: list[int] = []

        def late(number: int) -> None:
            asked.append(number)
            if len(asked) == 3:  # after the question and the wait
                time.sleep(0.15)

        advisory_lock(f"{busy} free", using="postgres").acquire()  # the next one takes the short way
        registry.entry("postgres").backend.close()  # nothing is known of the name: it is tried before it is waited for
        proxy.on_request = late
        with pytest.raises(LockTimeout):
            advisory_lock(busy, using="postgres").acquire(timeout=0.3)
        proxy.on_request = lambda number: None
        assert len(asked) == 3
    assert rows.count("postgres", world.name) == 1
