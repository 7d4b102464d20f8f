"""How what needs a whole processor keeps out of the way of what measures milliseconds beside it."""

from __future__ import annotations

import os

# Above a command that needs a whole processor.
POLITELY = ("nice", "-n", "10")


def be_polite() -> None:
    """In a child that needs a whole processor: whoever measures something goes first."""
    os.nice(10)
