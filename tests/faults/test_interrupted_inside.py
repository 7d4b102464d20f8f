"""Ctrl-C while a transaction waits for the answer to its lock."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import Error, connections, transaction

from django_distlock import DistlockError, advisory_lock
from django_distlock.manager.lock_table import lock_table
from tests.conftest import eventually
from tests.faults.conftest import database_alias
from tests.faults.proxy import Proxy


@pytest.mark.usefixtures("databases")
@pytest.mark.parametrize(("using", "database"), [("postgres", "postgres"), ("mysql", "mariadb")])
@pytest.mark.parametrize("repeated", [False, True], ids=["once", "repeated"])
def test_r11_an_interrupted_acquire_inside_atomic_leaves_nothing_held(
    using: str, database: str, repeated: bool, name: str, settings: Any
) -> None:
    """After the block, whether it gives up or goes on and takes the lock once more, others have the lock."""
    server = connections.settings[database]
    with (
        Proxy(server["HOST"], int(server["PORT"])) as proxy,
        database_alias(f"{database}_ctrl_c", database, PORT=str(proxy.port)) as alias,
        ThreadPoolExecutor(1) as pool,
    ):
        options = {"database": alias, "session_database": alias}
        settings.DISTLOCK = {**settings.DISTLOCK, "here": {**settings.DISTLOCK[using], "OPTIONS": options}}
        lock = advisory_lock(name, using="here", timeout=20)

        def interrupt() -> None:
            held.wait()
            os.kill(os.getpid(), signal.SIGINT)
            held.pass_on()

        try:
            with transaction.atomic(using=alias):
                advisory_lock(f"{name}-first", using="here").acquire()
                held = proxy.hold("reply")
                sent = pool.submit(interrupt)
                with pytest.raises(KeyboardInterrupt):
                    lock.acquire()
                sent.result()
                if repeated:
                    assert lock.acquire().held
        except (Error, DistlockError):
            assert using == "postgres", "the block may be broken only where the server says so"
        eventually(lambda: not lock_table.all(), "it stays in the table")
        pool.submit(lambda: advisory_lock(name, using=using, timeout=20).acquire().release()).result()
