"""What is done before and after a fork of the process: one list, in one order.

``os.register_at_fork`` calls functions in the order in which their modules were imported. Here the order is explicit:
that of :class:`Order`, and within one value that of registration. In the child::

    at_fork(Order.SESSIONS, child=registry.after_fork)

``before`` is called in the opposite order, as locks are taken that ``parent`` and ``child`` release. A function that
fails does not keep the others from being called; the first error is raised at the end, and Python prints it.
"""

from __future__ import annotations

import os
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Order(IntEnum):
    """In the child nothing may use what has a higher value: it is still the parent's."""

    #: Mutexes that another thread of the parent may have had, random numbers, queues: what all others use.
    PRIMITIVES = 1
    #: Threads, which did not come along, and what waited for them. They start again when they are next needed.
    THREADS = 2
    #: Files and connections, which are the parent's: they are left without a word.
    SESSIONS = 3
    #: What the parent holds: the child has lost it.
    HOLDS = 4


class _Handlers(NamedTuple):
    order: Order
    before: Callable[[], object] | None
    parent: Callable[[], object] | None
    child: Callable[[], object] | None


_handlers: list[_Handlers] = []


def at_fork(
    order: Order,
    *,
    before: Callable[[], object] | None = None,
    parent: Callable[[], object] | None = None,
    child: Callable[[], object] | None = None,
) -> None:
    """Call ``before`` a fork, and after it ``parent`` in the parent and ``child`` in the child."""
    _handlers.append(_Handlers(order, before, parent, child))
    _handlers.sort(key=lambda handlers: handlers.order)


def _call(functions: Iterable[Callable[[], object] | None]) -> None:
    failure: Exception | None = None
    for function in functions:
        if function is not None:
            try:
                function()
            except Exception as error:
                failure = failure or error
    if failure is not None:
        raise failure


def _before() -> None:
    _call(handlers.before for handlers in reversed(_handlers))


def _parent() -> None:
    _call(handlers.parent for handlers in _handlers)


def _child() -> None:
    _call(handlers.child for handlers in _handlers)


os.register_at_fork(before=_before, after_in_parent=_parent, after_in_child=_child)
