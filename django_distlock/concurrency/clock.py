"""The clock of this package: monotonic, and counting while the host is suspended.

``time.monotonic()`` stops while a laptop sleeps, but the server keeps counting the TTL of a lease that the laptop
holds. This clock counts the sleep too, so that a lease that expired during it is seen as lost at the first check. Waits
and their deadlines use the same clock: a caller that waits for at most ten seconds and sleeps for an hour has timed
out.

Call it by its module, ``clock.now()``: a test may then put another clock in its place.
"""

from __future__ import annotations

import threading
import time
from functools import partial

# Linux: CLOCK_MONOTONIC with the time of suspension (https://man7.org/linux/man-pages/man2/clock_gettime.2.html).
# macOS: CLOCK_MONOTONIC includes that time too, unlike the clock that Python's time.monotonic() reads there.
# On other systems it may stop, see docs/guarantees.md.
now = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def wait(gate: threading.Lock, seconds: float) -> bool:
    """Wait for at most ``seconds`` until another thread opens ``gate``, a lock that is held. True if it did."""
    return gate.acquire(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX)))
