"""Owner tokens: 128 random bits each, unpredictable, and different in every process."""

from __future__ import annotations

import secrets
import threading

from .fork import Order, at_fork

# Random bytes are read for this many tokens at a time: one call costs as much as a whole acquire in memory.
BATCH = 64
BYTES = 16

_guard = threading.Lock()
_stock: list[str] = []


def new_token() -> str:
    """A new, unique token: 32 hexadecimal digits."""
    with _guard:
        if not _stock:
            drawn = secrets.token_hex(BYTES * BATCH)
            _stock.extend(drawn[start : start + 2 * BYTES] for start in range(0, len(drawn), 2 * BYTES))
        return _stock.pop()


def _forget() -> None:
    """In the child of a fork: drop the stock, which the parent will use."""
    global _guard
    _guard = threading.Lock()
    _stock.clear()


at_fork(Order.PRIMITIVES, child=_forget)
