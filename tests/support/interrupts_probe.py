"""Code with each kind of place at which Python looks for signals, and where a running Python looks in it.

    python -m tests.support.interrupts_probe SECONDS

prints function and line of each place at which signals came, as JSON: at the end of that time, or as soon as those that
stand in its input were met.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import FrameType

Place = tuple[str, int]


class Thing:
    def method(self, *args: object, **more: object) -> object:
        return args or more

    def __enter__(self) -> Thing:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


class Made:
    def __init__(self, value: object) -> None:
        self.value = value


def given(value: object) -> object:
    return value


def all_given(*values: object) -> object:
    return values


def calls(thing: Thing) -> None:
    given(1)
    id(1)
    thing.method(2)
    "a".upper()
    functools.partial(given, 1)()
    SimpleNamespace(a=1)


def spread(thing: Thing) -> None:
    args = (1, 2)
    thing.method(*args)
    max(*args)


def keywords(thing: Thing) -> None:
    dict(a=1)  # noqa: C408 - a call in C
    given(value=1)
    thing.method(value=1)


def callbacks(thing: Thing) -> None:
    sorted([2, 1], key=given)  # type: ignore[arg-type, type-var]
    max(2, 1, key=lambda value: value)


def loops(thing: Thing) -> list[int]:
    for number in (1, 2):
        if number:
            continue
    left = 3
    while left > 0:
        left -= 1
    return [number for number in (1, 2) if number]


def generator() -> Generator[int, None, None]:
    yield 1
    try:
        yield 2
    finally:
        yield 3


def delegating() -> Generator[int, None, None]:
    yield from generator()


def generators(thing: Thing) -> None:
    flow = sometimes()
    flow.send(None)  # type: ignore[arg-type]
    for _ in flow:
        pass


@contextmanager
def managed() -> Iterator[None]:
    yield


def blocks(thing: Thing) -> None:
    with thing:
        pass
    with managed():
        pass
    try:
        given(1)
    finally:
        id(2)


def sometimes() -> Generator[int, None, None]:
    """Calls that have such a place only while they are new, or in some versions; and the making of a generator, which
    has none and looks like the making of an object."""
    args = (1, 2)
    all_given(*args)
    Made(1)
    return delegating()


THING = Thing()


def everything() -> None:
    for function in (calls, spread, keywords, callbacks, loops, generators, blocks):
        function(THING)


def looked_at(seconds: float, wanted: set[Place]) -> set[Place]:
    """Where handlers of signals run while ``everything`` does; until all the wanted ones were seen, or the time is
    over."""
    seen: set[Place] = set()

    def handle(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename == __file__:
            seen.add((frame.f_code.co_qualname, frame.f_lineno))
        # at a different place each time
        signal.setitimer(signal.ITIMER_REAL, 2e-5 + time.perf_counter_ns() % 1000 * 1e-7)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
    until = time.monotonic() + seconds
    least = time.monotonic() + min(1.0, seconds)
    while time.monotonic() < least or (wanted - seen and time.monotonic() < until):
        everything()
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # first: the handler sets the timer anew
    signal.setitimer(signal.ITIMER_REAL, 0)
    return seen


def main(seconds: str) -> Any:
    wanted = {(name, line) for name, line in json.load(sys.stdin)}
    json.dump(sorted(looked_at(float(seconds), wanted)), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
