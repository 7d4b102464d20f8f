"""KeyboardInterrupt at each of the places in some files at which Python looks for signals.

CPython does that at the beginning of a function, at a jump backwards, and when a call has returned, though not one of
a Python function by a Python function (https://github.com/python/cpython/blob/3.11/Python/ceval.c, CHECK_EVAL_BREAKER).
A test that interrupts at random meets a gap of one such place once in thousands of runs; this one meets each.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, ModuleType

# Made by a call in C, whoever wrote them in Python.
_BY_C = frozenset({"__init__", "__new__", "__post_init__", "__enter__", "__exit__", "__hash__", "__eq__"})


@functools.cache
def _places(code: CodeType) -> tuple[frozenset[int], frozenset[int]]:
    """The offsets after a call, and those of the other places."""
    calls, others = set(), set()
    instructions = list(dis.get_instructions(code))
    for this, following in itertools.pairwise(instructions):
        if this.opname.startswith("CALL") and not this.opname.startswith("CALL_INTRINSIC"):
            calls.add(following.offset)
        elif this.opname == "RESUME" and (this.arg or 0) < 2:
            others.add(following.offset)
        elif this.opname == "JUMP_BACKWARD":
            others.add(this.argval)
    return frozenset(calls), frozenset(others)


class Interrupter:
    """Raises KeyboardInterrupt at place number ``at`` of ``modules``, once, in the thread that calls :meth:`run`."""

    def __init__(self, at: int, *modules: ModuleType) -> None:
        self.files = {module.__file__ for module in modules}
        self.left = at
        self.place: str | None = None  # None: that many were not met
        self._callee: dict[FrameType, CodeType] = {}

    def run(self, function: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return function()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename in self.files:
            self._callee[caller] = frame.f_code
        if frame.f_code.co_filename not in self.files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._look

    def _look(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode" and self.place is None and self._is_place(frame):
            self.left -= 1
            if self.left < 0:
                self.place = f"{frame.f_code.co_qualname}, line {frame.f_lineno}, offset {frame.f_lasti}"
                raise KeyboardInterrupt(self.place)
        return self._look

    def _is_place(self, frame: FrameType) -> bool:
        calls, others = _places(frame.f_code)
        if frame.f_lasti in calls:
            callee = self._callee.pop(frame, None)
            return callee is None or callee.co_name in _BY_C
        return frame.f_lasti in others


def interrupted_everywhere(
    function: Callable[[], Any], clean: Callable[[], object], *modules: ModuleType, first: int = 0, most: int = 2000
) -> int:
    """Interrupt ``function`` at each place in turn, with a call of ``clean`` after each. How many places there were."""
    for at in range(first, most):
        interrupter = Interrupter(at, *modules)
        with contextlib.suppress(KeyboardInterrupt):
            interrupter.run(function)
        try:
            clean()
        except BaseException as error:
            error.add_note(f"Interrupted at place {at}: {interrupter.place}.")
            raise
        if interrupter.place is None:
            return at
    raise AssertionError(f"More than {most} places, or a loop.")
