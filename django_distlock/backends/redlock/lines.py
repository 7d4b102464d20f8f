"""A line: the connection of one lane to one node, what the node owes us on it, and what we owe the node."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

from django_distlock.backends.redis.pool import Link, LinkError
from django_distlock.backends.redis.protocol import PENDING, unknown_script
from django_distlock.concurrency.clock import monotonic

from .debts import Debts

if TYPE_CHECKING:
    import select
    from collections.abc import Callable

    from .nodes import Node, Slot

# A node that owes so many answers is asked no more; one that owes so many more loses its connection.
MOST_OWED, TOO_MANY_OWED = 64, 4096
# A connection that has been silent for so long with an answer due is tried anew aside; seconds.
SILENT = 0.25


class Line:
    """Nothing here waits. All but what only reads is done under the mutex of the lane. Replies come in the order of the
    requests."""

    __slots__ = ("_bury", "_lines", "_link", "_poll", "debts", "node", "owed")

    def __init__(
        self, node: Node, poll: select.poll, lines: dict[int, Line], bury: Callable[[Link], None] = Link.close
    ) -> None:
        self.node = node
        self.owed: deque[Slot] = deque()
        self.debts = Debts()
        self._poll = poll
        self._lines = lines  # of the lane, by file descriptor
        self._link: Link | None = None
        self._bury = bury

    @property
    def up(self) -> bool:
        return self._link is not None

    def attach(self, link: Link) -> None:
        """A connection has been made. What is owed to the node goes first."""
        if self.owed:  # on the one before, which was silent
            self.node.error = TimeoutError("There was no answer for long.")
        self.drop()
        self._link = link
        self._lines[link.fd] = self
        self._poll.register(link.fd, 1)  # POLLIN
        self.pay(monotonic())

    def drop(self) -> None:
        """The connection is of no use any more; what it may have left at the node is owed from now on."""
        link = self._link
        if link is None:
            return
        self._link = None
        self._lines.pop(link.fd, None)
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._poll.unregister(link.fd)
        self._bury(link)
        now = monotonic()
        for slot in self.owed:
            slot.lost = True
            self.debts.owe(slot, now)
        self.owed.clear()

    def send(self, command: bytes, slot: Slot) -> bool:
        """False: there is no connection."""
        link = self._link
        if link is not None and len(self.owed) >= TOO_MANY_OWED:
            self.drop()
        if link is None or self._link is None:
            return False
        slot.sent = True
        self.owed.append(slot)
        self._attempt(lambda: link.send(command))
        return True

    def hear(self) -> None:
        """Take the replies that have come, and notice if the node has hung up."""
        if self._link is not None:
            self._attempt(self._hear)

    def _hear(self) -> None:
        link = self._link
        while link is not None:
            if not self.owed:
                if link.stale():
                    self.drop()
                return
            reply = link.take()
            if reply is PENDING:
                return
            slot = self.owed.popleft()
            if slot.final and unknown_script(reply):  # whether or not anybody still listens, it must be done
                self.owed.append(slot)
                link.send(slot.undo)
            else:
                slot.reply = reply

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except LinkError as error:
            self.node.error = error.__cause__ or error
            self.drop()
        except BaseException:  # interrupted: nobody knows how far it came
            self.drop()
            raise

    def pay(self, now: float) -> None:
        """Take back at the node what is still owed to it."""
        for undo, slot in self.debts.payments(now):
            if not self.send(undo, slot):
                return

    def tell(self, undo: bytes, slot: Slot, now: float) -> None:
        """Send something to whose reply nobody listens; now, or when the node can be reached."""
        if not self.send(undo, slot) or self.debts.overtaken(slot):
            self.debts.owe(slot, now)

    def slow(self, now: float) -> bool:
        """Does the node owe an answer whose time is over?"""
        return bool(self.owed) and self.owed[0].until <= now

    def healthy(self, now: float) -> bool:
        """Is there no sign that the node would keep us waiting?"""
        return not self.slow(now) if self.up else not self.node.trouble

    def tend(self, now: float) -> bool:
        """Hear what came late and pay debts. True if a new connection should be tried."""
        self.hear()
        self.debts.settle(now)
        if self.debts and self.up and not self.owed:
            self.pay(now)
        return self.silent(now) if self.up else bool(self.debts)

    def silent(self, now: float) -> bool:
        """Has nothing been heard for so long that perhaps only the connection is broken?"""
        return bool(self.owed) and now - self.owed[0].sent_at > SILENT

    def abandon(self) -> None:
        """In the child of a fork: the connection is the parent's, who must not notice."""
        if self._link is not None:
            self._link.close()
