"""The calls that one thread makes, as ``sys.setprofile`` tells of them."""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from tests.support.paths import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


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


def files_entered(function: Callable[[], T]) -> tuple[T, set[str]]:
    """The result of ``function``, and the files of the package whose functions it enters in this thread."""
    entered: set[str] = set()

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{PACKAGE}/"):
            entered.add(frame.f_code.co_filename.removeprefix(f"{PACKAGE}/"))

    with profiled(note):
        result = function()
    return result, entered
