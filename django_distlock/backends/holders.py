"""What a holder says of itself to operators, as JSON, and what is read of it."""

from __future__ import annotations

import json
import os
import socket
from datetime import UTC, datetime, timedelta
from functools import cache
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.concurrency.origin import describe_caller

if TYPE_CHECKING:
    from django_distlock.keys import LockKey

UNKNOWN = "unknown"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@cache
def _process() -> str:
    return f'"host": {encode_basestring_ascii(socket.gethostname())}, "pid": {os.getpid()}'


at_fork(Order.PRIMITIVES, child=_process.cache_clear)


def holder_json(key: LockKey) -> bytes:
    """The host, the process, the thread or task that calls, and the name, in ASCII: a name may contain characters
    without a UTF-8 form."""
    name, thread = encode_basestring_ascii(key.full_name), encode_basestring_ascii(describe_caller())
    return f'{{"name": {name}, {_process()}, "thread": {thread}}}'.encode("ascii")


def facts_of(said: bytes) -> dict[str, Any]:
    """The facts in such JSON; none if another program wrote it."""
    try:
        facts = json.loads(said)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def who_of(facts: dict[str, Any]) -> str:
    """Describe a holder or waiter to an operator."""
    who = [facts.get(part) for part in ("host", "pid", "thread")]
    return UNKNOWN if None in who else ":".join(map(str, who))


def moment_of(microseconds: object) -> datetime | None:
    """The time; None if ``microseconds`` is none."""
    if not isinstance(microseconds, int):
        return None
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None
