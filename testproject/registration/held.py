"""The proof that a log-in is answered while a registration holds the lock: by order of events, not by a clock."""

from __future__ import annotations

import time
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import connections

from django_distlock import advisory_lock
from testproject.replay import ReplayError

from .models import Account

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testproject.replay.crowd import Answer, Post

HOLD_SECONDS = 10

# What lets everybody read the table of accounts and nobody write it, and what ends that.
BLOCK_WRITES = {
    "postgresql": ("BEGIN", "LOCK TABLE registration_account IN SHARE MODE", "ROLLBACK"),
    "mysql": ("LOCK TABLES registration_account READ", "UNLOCK TABLES"),
    "sqlite": ("BEGIN IMMEDIATE", "ROLLBACK"),
}


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


def log_in_while_held(lock_name: str, sign_up: Post, log_in: Post, email: str) -> bool:
    """Whether a log-in was answered (200) while the registration of `email` held `lock_name` and was
    still at its insert.

    Raises ReplayError if the registration never came to hold the lock, or was refused afterwards.
    """
    with ThreadPoolExecutor(2) as pool:
        with blocked_writes():
            registration = pool.submit(sign_up.send)
            wait_until_held(lock_name, registration)
            answer = pool.submit(log_in.send).result(HOLD_SECONDS)
            answered = answer.status == 200 and not registration.done()
        outcome = registration.result(HOLD_SECONDS)
    if outcome.status != 201:
        raise ReplayError(f"The registration that held the lock was answered {outcome.status} {outcome.error}.")
    Account.objects.filter(email=email).delete()
    return answered


def wait_until_held(lock_name: str, registration: Future[Answer]) -> None:
    deadline = time.monotonic() + HOLD_SECONDS
    lock = advisory_lock(lock_name)
    while (lease := lock.try_acquire(timeout=0)) is not None:
        lease.release()
        # Until the registration has come to its lock, or has ended without.
        if futures.wait([registration], timeout=0.01).done:
            raise ReplayError(f"The registration ended before its insert: {registration.result()}.")
        if time.monotonic() > deadline:
            raise ReplayError(f"No registration took the lock {lock_name!r} within {HOLD_SECONDS} s.")
