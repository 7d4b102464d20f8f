"""The proof that a log-in is answered while a registration holds the lock: by order of events, not by a clock."""

from __future__ import annotations

import time
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import connections

from django_distlock import advisory_lock
from testproject.registration.models import Account

from .crowd import Form, Visitor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .records import Answer

HOLD_SECONDS = 10

# What lets everybody read the table of accounts and nobody write it, and what ends that.
BLOCK_WRITES = {
    "postgresql": ("BEGIN", "LOCK TABLE registration_account IN SHARE MODE", "ROLLBACK"),
    "mysql": ("LOCK TABLES registration_account READ", "UNLOCK TABLES"),
    "sqlite": ("BEGIN IMMEDIATE", "ROLLBACK"),
}


class ProofError(Exception):
    """The situation to be observed did not come about."""


@contextmanager
def blocked_writes() -> Iterator[None]:
    """Nobody can insert an account inside the block: a registration gets as far as its insert, and stays there.

    On a connection of its own, so that this thread is in no transaction as far as Django and the locks can see.
    """
    connection = connections.create_connection("default")
    *begin, end = BLOCK_WRITES[connection.vendor]
    try:
        with connection.cursor() as cursor:
            for statement in begin:
                cursor.execute(statement)
            try:
                yield
            finally:
                cursor.execute(end)
    finally:
        connection.close()


def log_in_while_held(port: int, path: str, lock_name: str, sign_up: Form, log_in: tuple[str, Form]) -> bool:
    """Whether a log-in was answered (200) while a registration held `lock_name` and was still at its insert.

    Raises ProofError if the registration never came to hold the lock, or was refused afterwards.
    """
    visitor = Visitor.arrive(port, path)
    with ThreadPoolExecutor(2) as pool:
        with blocked_writes():
            registration = pool.submit(visitor.post, path, sign_up)
            wait_until_held(lock_name, registration)
            answer = pool.submit(visitor.post, *log_in).result(HOLD_SECONDS)
            answered = answer.status == 200 and not registration.done()
        outcome = registration.result(HOLD_SECONDS)
    if outcome.status != 201:
        raise ProofError(f"The registration that held the lock was answered {outcome.status} {outcome.error}.")
    Account.objects.filter(email=sign_up["email"]).delete()
    return answered


def wait_until_held(lock_name: str, registration: Future[Answer]) -> None:
    deadline = time.monotonic() + HOLD_SECONDS
    lock = advisory_lock(lock_name)
    while (lease := lock.try_acquire(timeout=0)) is not None:
        lease.release()
        # Until the registration has come to its lock, or has ended without.
        if futures.wait([registration], timeout=0.01).done:
            raise ProofError(f"The registration ended before its insert: {registration.result()}.")
        if time.monotonic() > deadline:
            raise ProofError(f"No registration took the lock {lock_name!r} within {HOLD_SECONDS} s.")
