"""The data of a node, which name its holder to operators: JSON that another program may have written over."""

from __future__ import annotations

import json
import os
import socket
from datetime import UTC, datetime
from functools import cache
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.concurrency.origin import describe_caller

if TYPE_CHECKING:
    from django_distlock.keys import LockKey

_TEXT = 255  # most characters of a holder's text that are shown


@cache
def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


at_fork(Order.PRIMITIVES, child=_process.cache_clear)


def node_data(key: LockKey, since: float) -> bytes:
    """In ASCII, since a name may contain characters without a UTF-8 form. ``since``: a Unix time."""
    who = encode_basestring_ascii(f"{_process()}:{describe_caller()}")
    name = encode_basestring_ascii(key.name)
    return f'{{"name": {name}, "holder": {who}, "since": {since:.6f}}}'.encode("ascii")


def facts_of(data: bytes) -> dict[str, Any]:
    """The facts in such data; none if another program wrote them."""
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def text_of(value: object) -> str | None:
    """A text among the facts, as far as it is shown."""
    return value[:_TEXT] if isinstance(value, str) else None


def moment_of(value: object) -> datetime | None:
    """A Unix time among the facts."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None
