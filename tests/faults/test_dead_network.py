"""A wait without a timeout behind a network that dies: nobody would ever say that it is over."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import BackendUnavailable, advisory_lock
from tests.conftest import eventually
from tests.faults.server import DATABASES, SESSION_LOCKS, waiters
from tests.support.network import Network, NoNetwork
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.faults.conftest import Proxied

PATIENCE = 60.0  # seconds

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]


def wait_without_end(link: Any, using: str, name: str, in_a_task: bool) -> None:
    try:
        network = Network()
    except NoNetwork as error:
        link.say(str(error))
        return
    server = connections.settings[DATABASES[using]]
    server["PORT"] = str(network.relay(server["HOST"], int(server["PORT"])))
    link.say("asking")

    def die_when_told() -> None:
        link.hear()
        network.die()

    threading.Thread(target=die_when_told, daemon=True).start()
    lock = advisory_lock(name, using=using)
    try:
        if in_a_task:
            asyncio.run(lock.aacquire(timeout=None))
        else:
            lock.acquire(timeout=None)
    except BackendUnavailable as error:
        link.say(str(error))


@pytest.mark.parametrize("in_a_task", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("using", SESSION_LOCKS)
def test_r5_a_wait_without_end_on_a_dead_network_ends(using: str, in_a_task: bool, name: str) -> None:
    with advisory_lock(name, using=using), Child(wait_without_end, using, name, in_a_task) as child:
        said = child.hear()
        if said != "asking":
            pytest.skip(f"no process may have a network of its own here: {said}")
        eventually(lambda: waiters(using, name), "it does not wait")
        child.say("die")
        assert f"alias '{using}'" in child.hear(PATIENCE)


@pytest.mark.parametrize("using", [*SESSION_LOCKS, "leasetable_postgres", "leasetable_mariadb"])
def test_r5_a_wait_without_end_for_a_silent_server_ends(using: str, name: str, proxied: Proxied) -> None:
    """It accepts the connection, and nothing more."""
    proxied(using).blackhole()
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(BackendUnavailable):
            advisory_lock(name, using=using).acquire(timeout=None)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    assert ended.wait(PATIENCE)
