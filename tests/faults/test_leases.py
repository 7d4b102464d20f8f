"""I3 and I4: a holder that slept beyond its TTL knows it as soon as it wakes up, and fencing tokens rise even
when the server restarts."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.utils.module_loading import import_string

from django_distlock import DistlockError, LockLost, advisory_lock
from tests.conftest import eventually
from tests.faults.history import History, Journal
from tests.faults.pausing import take_over, wake
from tests.matrix import MATRIX, Entry
from tests.support import services
from tests.support.processes import Child
from tests.support.sizes import LONG, be_polite

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]

KINDS = {entry: import_string(entry.backend) for entry in MATRIX if entry.processes}
with_ttl = pytest.mark.parametrize(
    "entry", [entry for entry, kind in KINDS.items() if kind.supports_ttl], ids=lambda entry: entry.using, indirect=True
)
with_fence = pytest.mark.parametrize(
    "entry", [entry for entry, kind in KINDS.items() if kind.supports_fencing], ids=lambda e: e.using, indirect=True
)
# The server behind a lock alias, where it is one that may be restarted and remembers.
SERVERS = {"redis": "redis1", "zookeeper": "zookeeper"}

PAUSES, AT_ONCE = (20 if LONG else 1), 25
TTL = 0.4
GRANTS, PROCESSES = (50_000 if LONG else 120), 3


def holder(link: Any, using: str) -> None:
    """Hold the locks that the test names; after the pause say which are lost, without asking the server."""
    while (names := link.hear()) is not None:
        leases = [advisory_lock(name, using=using, ttl=TTL).acquire() for name in names]
        link.say("ready")
        link.hear()  # it is stopped here
        told = [lease.lost for lease in leases]
        for lease in leases:
            with suppress(LockLost):
                lease.release()
        link.say(told)


@with_ttl
def test_i3_who_slept_beyond_its_ttl_knows_it_at_once(entry: Entry, name: str) -> None:
    """R18: lost at ``valid_until``, seen by the first check after the pause; 500 of them in the full size."""
    with Child(holder, entry.using) as child:
        for pause in range(PAUSES):
            # all are taken over before the first is released: for longer than TTL
            locks = [advisory_lock(f"{name}{pause}-{number}", using=entry.using) for number in range(AT_ONCE)]
            child.say([lock.name for lock in locks])
            assert child.hear() == "ready"
            leases = [take_over(child, lock) for lock in locks]
            child.say("look")
            wake(child)
            assert child.hear() == [True] * AT_ONCE
            for lease in leases:
                lease.release()
        child.say(None)


def taker(link: Any, using: str, name: str, path: str, count: int) -> None:
    """Take the lock ``count`` times and write down each time; what the server's restart costs is not counted."""
    be_polite()
    journal, lock, done = Journal(path), advisory_lock(name, using=using), 0
    while done < count:
        with suppress(DistlockError):
            with journal.hold(lock):
                pass
            done += 1
    journal.close()
    link.say("done")


def granted(journal: Path) -> int:
    return journal.read_text().count("granted") if journal.exists() else 0


@with_fence
@pytest.mark.timeout(900)
def test_i4_fences_rise_from_grant_to_grant(entry: Entry, name: str, tmp_path: Path) -> None:
    """R21, over processes, and through a restart of the server where there is one that remembers what it granted."""
    journal = tmp_path / "journal"
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(taker, entry.using, name, str(journal), GRANTS // PROCESSES))
            for _ in range(PROCESSES)
        ]
        if entry.using in SERVERS:
            patience = 30 + GRANTS / 100
            eventually(lambda: granted(journal) > GRANTS // 3, "too slow", patience, pause=0.05 if not LONG else 1)
            services.restart(SERVERS[entry.using])
        for child in children:
            assert child.hear(timeout=30 + GRANTS / 100) == "done"
    history = History.read(journal)
    assert history.check() == []
    assert len(history.holds) >= GRANTS // PROCESSES * PROCESSES
