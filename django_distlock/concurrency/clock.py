"""The clock of this package: seconds since some point in the past, never set, and running on while the host is
suspended.

``time.monotonic()`` stands still while a laptop sleeps, and a server goes on to count the lease of a holder that is
asleep. On this clock a suspended host is like a process that was stopped: what ended meanwhile has ended at the first
look. Waiting and its deadlines are on the same clock, so that the two are never mixed up; who asked for ten seconds and
slept for an hour has waited for an hour.
"""

from __future__ import annotations

import time
from functools import partial

# Linux: CLOCK_MONOTONIC with the time of suspension (https://man7.org/linux/man-pages/man2/clock_gettime.2.html).
# macOS: its CLOCK_MONOTONIC counts that already; what Python's time.monotonic() reads there does not.
# Elsewhere it may stand still, see docs/guarantees.md.
monotonic = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
