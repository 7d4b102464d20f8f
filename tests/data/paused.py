"""The process that is stopped between its last look at the lease and its write, and writes when it wakes up."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, IntegrityError, connections

from django_distlock import DistlockError, LockLost, advisory_lock
from tests.data.fences import LEASES

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock import Lease
    from tests.support.child import Link

WAYS = ("update", "save", "raw")
STALE, FRESH = -1, 1
TTL = 4.0  # seconds: a hundred threads must come as far as their statement within it


class Gate:
    """Holds up the first statement of each thread until the word comes."""

    def __init__(self, threads: int) -> None:
        self.opened, self.full = threading.Event(), threading.Semaphore(0)
        self.threads = threads

    def hold_up(self, execute: Any, *arguments: Any) -> Any:
        if not self.opened.is_set():
            self.full.release()
            assert self.opened.wait(60)
        return execute(*arguments)

    def wait_until_full(self) -> None:
        for _ in range(self.threads):
            assert self.full.acquire(timeout=30)


def holder(link: Link, alias: str) -> None:
    """For each round: take the leases, get as far as the statement, say so, and write at the word."""
    while (names := link.hear()) is not None:
        gate, outcomes = Gate(len(names)), [{} for _ in names]
        threads = [
            threading.Thread(target=late, args=(alias, name, pks, first, gate, outcome))
            for (name, pks, first), outcome in zip(names, outcomes, strict=True)
        ]
        for thread in threads:
            thread.start()
        gate.wait_until_full()
        link.say("ready")
        link.hear()
        gate.opened.set()
        for thread in threads:
            thread.join(60)
        link.say(outcomes)


def late(alias: str, name: str, pks: dict[str, int], first: str, gate: Gate, outcome: dict[str, str]) -> None:
    """The way ``first`` has the lease itself and is stopped after it has asked; the others have only its token."""
    ways = writes(alias, pks)
    lease = advisory_lock(name, using=LEASES[alias], ttl=TTL).acquire(timeout=30)
    token = lease.fence
    try:
        connections[alias].ensure_connection()
        with connections[alias].execute_wrapper(gate.hold_up):
            outcome[first] = result(lambda: ways[first](lease))
            for way in WAYS:
                if way != first:
                    outcome[way] = result(lambda way=way: ways[way](token))
            outcome["naive"] = result(lambda: ways["naive"](token))
    finally:
        with contextlib.suppress(DistlockError):
            lease.release()
        connections[alias].close()


def writes(alias: str, pks: dict[str, int]) -> dict[str, Callable[[Any], Any]]:
    """Each with a lease or a token. "raw" carries its token and asks nothing; the others do not."""
    from tests.data.app.models import FencedLedger, Register

    rows = Register.objects.using(alias)
    instance = rows.get(pk=pks["save"])
    instance.balance = STALE

    def raw(fence: Lease | int) -> None:
        if not isinstance(fence, int):
            fence.ensure_held()
            fence = fence.fence
        connection = connections[alias]
        table = connection.ops.quote_name(FencedLedger._meta.db_table)
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET amount = %s, fence = %s WHERE id = %s", [STALE, fence, pks["raw"]])

    return {
        "update": lambda fence: rows.fenced(fence).filter(pk=pks["update"]).update(balance=STALE),
        "save": lambda fence: instance.save(fence=fence),
        "raw": raw,
        "naive": lambda fence: rows.filter(pk=pks["naive"]).update(balance=STALE),
    }


def result(write: Callable[[], Any]) -> str:
    """Only what the database has refused counts as refused."""
    try:
        write()
    except LockLost as error:
        return "refused" if "came too late" in str(error) else str(error)
    except IntegrityError as error:
        return "refused" if "stale fencing token" in str(error) else str(error)
    except (DistlockError, DatabaseError) as error:
        return str(error)
    return "accepted"
