"""How much of a test that takes long is run, all of it under ``make test LONG=1``; and how such a test keeps out of the
way of those that measure milliseconds beside it."""

from __future__ import annotations

import os

LONG = os.environ.get("DISTLOCK_LONG") == "1"
# Above a command that needs a whole processor.
POLITELY = ("nice", "-n", "10")


def be_polite() -> None:
    """In a child that needs a whole processor: whoever measures something goes first."""
    os.nice(10)
