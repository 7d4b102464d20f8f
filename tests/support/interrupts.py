"""KeyboardInterrupt at each of the places in some files at which Python looks for signals.

CPython does that at the beginning of a function, when a generator goes on, at a jump backwards, and when a call has
returned, though not one of a Python function by a Python function (Python/ceval.c of 3.11 and Python/bytecodes.c since:
CHECK_EVAL_BREAKER). tests/support/test_interrupts.py compares this with what the running Python does.
A test that interrupts at random meets a gap of one such place once in thousands of runs; this one meets each.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, ModuleType

# Called by a call in C, whoever wrote them in Python; besides what namedtuple and dataclass write.
_BY_C = frozenset({"__init__", "__new__", "__enter__", "__exit__", "__hash__", "__eq__"})
_GENERATED = "<string>"
# Behind RESUME 2 (in ``yield from``) and 3 (in ``await``) nobody looks. Since 3.13 a third bit is about something else.
_WHERE = 3


class Look(NamedTuple):
    """An instruction that looks for signals at its end."""

    next: int  # the offset where it goes on
    line: int | None
    is_call: bool = False
    is_spread: bool = False  # f(*args): up to 3.11 a call in C, after that often one


@functools.cache
def _looks(code: CodeType) -> dict[int, Look]:
    """By their offsets."""
    found: dict[int, Look] = {}
    begin = line = None
    instructions = list(dis.get_instructions(code))
    for this, following in itertools.zip_longest(instructions, instructions[1:], fillvalue=instructions[-1]):
        begin = this.offset if begin is None else begin
        if this.opname == "EXTENDED_ARG":  # belongs to the one that follows, of which not every version tells
            continue
        line = this.positions.lineno if this.positions is not None else line
        look = _look_of(this, following, line)
        if look is not None:
            found[begin] = found[this.offset] = look
        begin = None
    return found


def _look_of(this: dis.Instruction, following: dis.Instruction, line: int | None) -> Look | None:
    if this.opname.startswith("CALL") and not this.opname.startswith("CALL_INTRINSIC"):
        if following.opname == "GET_YIELD_FROM_ITER":  # makes a generator, in Python
            return None
        return Look(following.offset, line, is_call=True, is_spread=this.opname == "CALL_FUNCTION_EX")
    if this.opname == "RESUME" and (this.arg or 0) & _WHERE < 2:
        return Look(following.offset, line)
    if this.opname.startswith(("JUMP_BACKWARD", "POP_JUMP_BACKWARD")) and "NO_INTERRUPT" not in this.opname:
        return Look(this.argval, line)
    return None


class Interrupter:
    """Raises ``error`` at place number ``at`` of ``modules``, once, in the thread that calls :meth:`run`."""

    def __init__(self, at: int, *modules: ModuleType, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.error = error
        self.files = {module.__file__ for module in modules}
        self.left = at
        self.met: set[tuple[str, int | None]] = set()  # functions and lines of the places before
        self.place: str | None = None  # None: that many were not met
        self._callee: dict[FrameType, CodeType] = {}
        self._before: dict[FrameType, int] = {}  # the offset of the instruction before

    def run(self, function: Callable[[], Any]) -> Any:
        before = sys.gettrace(), sys.getprofile()
        # Python 3.12 tells of instructions only if some frame asked for that before settrace.
        sys._getframe().f_trace_opcodes = True
        sys.setprofile(self._returned)
        sys.settrace(self._enter)
        try:
            return function()
        finally:
            sys.settrace(before[0])
            sys.setprofile(before[1])
            self._callee.clear()
            self._before.clear()

    def _returned(self, frame: FrameType, event: str, argument: object) -> None:
        """A function in C has returned to the frame, whatever in Python it called."""
        if event == "c_return":
            self._callee.pop(frame, None)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename in self.files:
            self._callee[caller] = frame.f_code
        if frame.f_code.co_filename not in self.files:
            return None
        self._before[frame] = frame.f_lasti  # RESUME, of which no version tells
        frame.f_trace = self._look  # Python 3.13 tells of instructions only if this is there before f_trace_opcodes
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._look

    def _look(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode" and self.place is None and (look := self._before_this(frame)) is not None:
            self.left -= 1
            self.met.add((frame.f_code.co_qualname, look.line))
            if self.left < 0:
                self.place = f"{frame.f_code.co_qualname}, line {look.line}, offset {frame.f_lasti}"
                raise self.error(self.place)
        elif event == "return":  # or has yielded; what it held must not live longer for being watched
            self._callee.pop(frame, None)
            self._before.pop(frame, None)
        return self._look

    def _before_this(self, frame: FrameType) -> Look | None:
        """What looked for signals between the frame's instruction before and this one."""
        looks, before, here = _looks(frame.f_code), self._before.get(frame), frame.f_lasti
        self._before[frame] = here
        callee = self._callee.get(frame)
        if here in looks and looks[here].is_call:
            self._callee.pop(frame, None)  # what made its arguments
        look = None if before is None else looks.get(before)
        if look is None or look.next != here:  # as after an error
            return None
        by_c = look.is_spread or callee is None or callee.co_name in _BY_C or callee.co_filename == _GENERATED
        return look if by_c or not look.is_call else None


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
        except BaseException as error:
            error.add_note(f"Interrupted at place {at}: {interrupter.place}.")
            raise
        if interrupter.place is None:
            return at
    raise AssertionError(f"More than {most} places, or a loop.")
