"""KeyboardInterrupt, or another exception of a signal, at each function and each call of some modules in turn.

Python looks for signals where a function begins or a generator goes on, and where a call in C has returned: a profiler
is told of just these. (It also looks at jumps backwards, which are left out.) A test that interrupts at random meets a
gap of one such place once in thousands of runs; this one meets each.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType


class Interrupter:
    """Raises ``error`` at place number ``at``, once, in the thread that calls :meth:`run`."""

    def __init__(self, at: int, *modules: ModuleType, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.error = error
        self.files = {module.__file__ for module in modules}
        self.left = at
        self.place: str | None = None  # None: so many places were not met

    def run(self, function: Callable[[], Any]) -> Any:
        before = sys.getprofile()
        sys.setprofile(self._look)
        try:
            return function()
        finally:
            sys.setprofile(before)

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        if self.place is None and event in ("call", "c_return") and frame.f_code.co_filename in self.files:
            self.left -= 1
            if self.left < 0:
                self.place = f"{frame.f_code.co_qualname}, line {frame.f_lineno}, {event}"
                raise self.error(self.place)


def interrupted_everywhere(
    function: Callable[[], Any],
    clean: Callable[[], object],
    *modules: ModuleType,
    first: int = 0,
    most: int = 2000,
    error: type[BaseException] = KeyboardInterrupt,
) -> int:
    """Interrupt ``function`` at each place in turn, with a call of ``clean`` after each. How many places there were."""
    for at in range(first, most):
        interrupter = Interrupter(at, *modules, error=error)
        with contextlib.suppress(error):
            interrupter.run(function)
        try:
            clean()
        except BaseException as failed:
            failed.add_note(f"Interrupted at place {at}: {interrupter.place}.")
            raise
        if interrupter.place is None:
            return at
    raise AssertionError(f"More than {most} places, or a loop.")
