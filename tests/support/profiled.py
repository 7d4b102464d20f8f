"""The calls that one thread makes, as ``sys.setprofile`` tells of them."""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def profiled(note: Callable[[Any, str, object], None]) -> Iterator[None]:
    """``note(frame, event, argument)`` for each call inside. The garbage collector rests: it would finalize what tests
    before have left, and calls the package each time that it begins."""
    gc.collect()
    gc.disable()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
        gc.enable()
