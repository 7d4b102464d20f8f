"""What is done before and after a fork of the process: one list, in one order.

``os.register_at_fork`` calls functions in the order in which their modules were imported. Here the order is explicit:
that of :class:`Order`, and within one value that of registration. ``before`` is called in the opposite order, as locks
are taken that ``parent`` and ``child`` release. A function that fails does not keep the others from being called;
Python prints the error.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Order(IntEnum):
    """Handlers run in this order. A handler may use only what an earlier one has reset: the rest is the parent's."""

    #: Mutexes that another thread of the parent may have had, random numbers, queues: what all others use.
    PRIMITIVES = 1
    #: Threads, which did not come along, and what waited for them. They start again when they are next needed.
    THREADS = 2
    #: Files and connections, which are the parent's: closed without sending anything to the server.
    SESSIONS = 3
    #: What the parent holds: the child has lost it.
    HOLDS = 4


# What is called "before" a fork, in the "parent" and in the "child": the order and the function.
_handlers: dict[str, list[tuple[Order, Callable[[], object]]]] = {"before": [], "parent": [], "child": []}


def at_fork(order: Order, **functions: Callable[[], object]) -> None:
    """Call ``before`` a fork, and after it ``parent`` in the parent and ``child`` in the child."""
    for when, function in functions.items():
        _handlers[when].append((order, function))
        _handlers[when].sort(key=lambda handler: handler[0])


def _call(handlers: Iterable[tuple[Order, Callable[[], object]]]) -> None:
    with ExitStack() as stack:  # which calls the last one first, and each of them although another one fails
        for _, function in handlers:
            stack.callback(function)


os.register_at_fork(
    before=lambda: _call(_handlers["before"]),
    after_in_parent=lambda: _call(reversed(_handlers["parent"])),
    after_in_child=lambda: _call(reversed(_handlers["child"])),
)
