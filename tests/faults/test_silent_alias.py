"""R20: a server that is silent costs the leases of other aliases nothing."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, advisory_lock, lock_all
from django_distlock.concurrency.clock import monotonic
from tests.conftest import eventually
from tests.engines.redis.server import BACKEND, Own

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.alone, pytest.mark.tier2]
TTL = 6.0


def test_r20_a_silent_server_costs_the_leases_of_another_alias_nothing(
    name: str, settings: Any, tmp_path: Path
) -> None:
    """Its own leases are lost; each attempt to renew one of them waits for the server."""
    with Own(tmp_path) as own:
        settings.DISTLOCK = {
            "silent": {"BACKEND": BACKEND, "TTL": TTL, "OPTIONS": {"url": own.url}},
            "healthy": {**settings.DISTLOCK["leasetable"], "TTL": TTL},
        }
        doomed = lock_all([advisory_lock(f"{name}{n}", using="silent") for n in range(25)]).acquire()
        with advisory_lock(name, using="healthy") as lease:
            own.signal(signal.SIGSTOP)
            try:
                eventually(lambda: all(each.lost for each in doomed), "the leases of a dead server are not lost")
                until = monotonic() + TTL
                eventually(lambda: lease.lost or monotonic() > until, "the test stands still", patience=TTL + 20)
                lease.ensure_held()
            finally:
                own.signal(signal.SIGCONT)
        with pytest.raises(LockLost):
            doomed.release()
