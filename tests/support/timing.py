"""Bounds on time.

The machine can make a program late and cannot make it early. So what was slow is measured again, up to three times,
and the least counts: pytest-rerunfailures runs a test anew that ended in :class:`TooSlow`. What is slow of its own
stays slow. The same goes for a server on this machine that did not answer "in time", half a second at least, where the
test did not expect that. What came too early, or came out wrong, is an AssertionError, and final.
"""

from __future__ import annotations

import math


class TooSlow(AssertionError):
    """It took longer than it may; the options of pytest in pyproject.toml name this class."""


def within(seconds: float, most: float, *, least: float = -math.inf, what: object = "it") -> None:
    """``seconds`` is what was measured, ``most`` what it may be; ``what`` says more in the message."""
    assert seconds >= least, f"{what} took {seconds:.4f} s, which is less than {least:g} s"
    if seconds > most:
        raise TooSlow(f"{what} took {seconds:.4f} s, and may take {most:g} s")
