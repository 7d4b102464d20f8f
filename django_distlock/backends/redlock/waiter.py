"""A caller that waits: it joins the queue at one node, sleeps until that node calls it, and asks now and then."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.deadline import pause
from django_distlock.concurrency.places import TURN, Place
from django_distlock.exceptions import BackendUnavailable

from .acquire import numbers
from .connection import PENDING, ConnectionFailed, pack
from .nodes import CONNECT_TIMEOUT, GRACE, JOIN, KEPT, PLACES, RESPECT, Undo, undo_request
from .rounds import LATE_REPLY, Crowded, RedlockBackendUnavailable

if TYPE_CHECKING:
    from django_distlock.concurrency.places import Places
    from django_distlock.records import Grant

    from .acquire import RedlockAttempt
    from .nodes import Pipeline, Sent

# A waiter asks without being called, because a call may be lost: first after the one time, then less and less often.
FIRST_LOOK, LONGEST_LOOK = 0.25, 2.0
# When the lease of the holder has ended, the first in the queue asks after the one time, the others one by one after
# the other; seconds.
EXPIRED, LATER = 0.005, 0.25
# The pause of a waiter that cannot listen, for each place in the queue, and at most; seconds.
NEXT, LONGEST_PAUSE = 0.01, 0.05
# A waiter that finds no place in the queue of its process asks after this time; seconds.
LOOK_EVERY = 0.25
# The random delay after a vote that nobody won, doubled each time; seconds.
SPLIT, MOST_SPLITS = 0.002, 5
# A node that grants alone for this time does not know the holder. For less, the others may only be later to hear of a
# release. Seconds.
STRANGE = 0.05
# Too few replies are an error after this time, if the caller has it; and if connections were lost. Seconds.
DISTURBANCE, LONG_DISTURBANCE = 0.5, 2.0
# A waiter does not ask with less time than this; seconds.
LAST_LOOK = 0.003
# With less time than this a node cannot be expected to answer; seconds.
LEAST_TIME = 0.05
# A node that lets no caller listen is not asked again for this time; seconds.
DEAF = 2.0

_PING = pack("PING")


class Pace:
    """When a waiter asks again, and which node keeps its queue. Values in, values out."""

    def __init__(self) -> None:
        self.ahead = 0  # how many waiters come before it
        self.shift = 0  # how many nodes in turn did not know the holder
        self._ends_at = 0.0  # when the lease of the holder ends
        self._looks = 0
        self._splits = 0
        self._split_since: float | None = None

    def queued(self, reply: int, now: float) -> None:
        """The node that keeps the queue has refused the lock."""
        left, self.ahead = divmod(-1 - reply, PLACES)
        self._ends_at = now + (left or GRACE) / 1000  # free: the first in the queue has been called
        self._splits, self._split_since = 0, None

    def split(self, now: float) -> None:
        """That node did not refuse it, and yet there was no majority."""
        self._splits = min(self._splits + 1, MOST_SPLITS)
        if self._split_since is None:
            self._split_since = now
        elif now - self._split_since >= STRANGE:
            self.shift, self._split_since = self.shift + 1, None

    def delay(self) -> float:
        """Seconds to wait after a vote that nobody won."""
        return random.random() * SPLIT * float(2**self._splits) if self._splits else 0.0  # noqa: S311

    def look_at(self, now: float) -> float:
        """When to ask without being called."""
        wait = min(FIRST_LOOK * (1 << self._looks), LONGEST_LOOK) * (0.75 + random.random() / 4)  # noqa: S311
        self._looks = min(self._looks + 1, 9)
        return min(now + wait, self._ends_at + EXPIRED + self.ahead * LATER)

    def called(self) -> None:
        """The next look comes after a short time again."""
        self._looks = 0

    def pause(self) -> float:
        """Seconds to wait for a waiter that cannot listen."""
        return min(NEXT * (1 + self.ahead), LONGEST_PAUSE) * (0.5 + random.random() / 2)  # noqa: S311


class RedlockWaiter:
    """``attempt`` until it is granted or the monotonic time ``deadline``. ``places``: for those that wait at a node."""

    def __init__(self, attempt: RedlockAttempt, places: Places, deadline: float) -> None:
        self._attempt = attempt
        self._nodes = attempt.nodes
        self._deadline = deadline
        self._places, self._place = places, Place()
        # how long it keeps the place while others of this process want it
        self._turn = TURN
        self._turn_ends = clock.now() + TURN
        self._pace = Pace()
        # its name in the queue, the node that keeps the queue, and since when it waits by the clock of that node
        self._member = f"{attempt.claim.token}-{next(numbers)}"
        self._lead = -1
        self._since = ""
        # the connection to that node, on which it listens
        self._own: Pipeline | None = None
        self._joined = False
        self._doubtful: set[int] = set()  # nodes that may be asked to queue it later, on a connection that was lost
        self._refused = False
        self._error: BackendUnavailable | None = None
        self._disturbed_at = 0.0

    async def wait(self, failed: BackendUnavailable | None) -> Grant | None:
        """The grant, or None at the deadline. ``failed``: how an attempt before has ended, if too few nodes answered.

        After that all nodes are asked at once, not first the one with the queue. BackendUnavailable if too few nodes
        answer for a while, or if nothing was heard since ``failed``.
        """
        everyone = failed is not None
        if not isinstance(failed, Crowded):
            self._error, self._disturbed_at = failed, clock.now()
        try:
            queued = self._places.take(self._place)
            while True:
                grant = await self._ask(queued, everyone)
                if grant is not None:
                    return grant
                if clock.now() < self._deadline:
                    had = queued and not self._gave_up()
                    queued, everyone = await self._rest(had)
                    if queued and not had:
                        self._turn_ends = clock.now() + self._turn
                if (left := self._deadline - clock.now()) <= LAST_LOOK:
                    # a caller whose time is not over would ask once more, at the same time as all the others
                    await pause(max(left, 0.0))
                    break
        finally:
            leftovers.now_or_later(self.end)
        if self._error is not None:
            raise self._error
        return None

    def _gave_up(self) -> bool:
        """Has its turn ended, with others waiting for the place? It keeps its age in the queue of the node."""
        if clock.now() < self._turn_ends or not self._places.wanted():
            return False
        self._leave()
        self._places.leave(self._place)
        self._place, self._member = Place(), f"{self._attempt.claim.token}-{next(numbers)}"
        self._turn *= 2
        return True

    async def _ask(self, queued: bool, everyone: bool) -> Grant | None:
        now = clock.now()
        until = self._attempt.until(self._deadline - now)
        try:
            if self._own is not None and self._own.overdue(now):
                self._own.node.silence(self._own)
            lead = self._attempt.lead(self._pace.shift)
            if lead != self._lead:
                self._leave()
                self._lead = lead
            if queued:
                await self._listen(until)
                self._joined = True
            grant = await self._attempt.vote(
                lead,
                until,
                JOIN if queued else RESPECT,
                everyone=everyone,
                own=self._own,
                member=self._member,
                since=self._since,
            )
        except BackendUnavailable as error:
            self._doubt(None)
            self._disturbed(error, now, until)
            return None
        except BaseException:
            self._doubt(None)
            raise
        self._doubt(self._attempt.at_lead)
        self._note(self._attempt.at_lead)
        return grant

    async def _listen(self, until: float) -> None:
        """Have a connection to the node that keeps the queue, which can call on it."""
        own, node = self._own, self._nodes.all[self._lead]
        if own is not None and own.link is not None:
            return
        self._own = None
        now = clock.now()
        if now < node.deaf_until:
            return
        own = self._own = await self._nodes.connected(node, min(until, now + CONNECT_TIMEOUT))
        if own is None or own.link is None or own.link.subscribed:
            return
        try:
            own.link.subscribe()
            own.link.send(_PING)
            await own.link.areceive(until)
        except ConnectionFailed as error:
            node.deaf_until = now + DEAF
            node.lose(own, error)
            self._own = None
        except BaseException:  # an answer is due that no request here stands for
            node.lose(own, None)
            self._own = None
            raise

    def _doubt(self, sent: Sent | None) -> None:
        """Remember a request to queue that may be executed later than the one that takes it back."""
        if not self._joined:
            return
        own = self._own is not None and self._own.link is not None
        known = sent is not None and not sent.lost and (sent.pipeline is self._own or sent.reply is not PENDING)
        if not own and not known:
            self._doubtful.add(self._lead)

    def _note(self, sent: Sent | None) -> None:
        """Learn from the answer of the node that keeps the queue."""
        self._error, self._refused, now = None, True, clock.now()
        reply = None if sent is None else sent.reply
        if isinstance(reply, int) and reply < 0:
            self._pace.queued(reply, now)
            return
        if isinstance(reply, int) and reply > 0:
            self._joined = False
            self._since = str(reply) if reply > 1 else self._since
        self._pace.split(now)

    def _disturbed(self, error: BackendUnavailable, asked: float, until: float) -> None:
        """Too few nodes answered. Raise ``error`` unless that may pass, and there is time to see."""
        if isinstance(error, Crowded):
            return
        now = clock.now()
        least = self._attempt.patience if self._refused or self._error is not None else LEAST_TIME
        if until - asked < least and now >= until:
            return  # the nodes had no time, so the outcome before counts
        if self._error is None:
            self._disturbed_at = asked
        self._error = error
        self._pace.split(now)
        lost = isinstance(error, RedlockBackendUnavailable) and error.lost  # so asking again may do better
        if now >= until or now - self._disturbed_at >= (LONG_DISTURBANCE if lost else DISTURBANCE):
            raise error

    async def _rest(self, queued: bool) -> tuple[bool, bool]:
        """Sleep until it is called, or should ask. Is it in the queue, and should it ask all nodes at once?"""
        left = self._deadline - clock.now()
        if delay := self._pace.delay():
            await pause(min(delay, left))
            return queued or self._places.take(self._place), self._error is not None
        if not queued:
            queued = self._places.take(self._place)
            if not queued:
                queued = await self._places.enter(self._place, min(LOOK_EVERY, left))
            return queued, False
        own, now = self._own, clock.now()
        if own is None or own.link is None:
            await pause(min(self._pace.pause(), left))
            return True, self._pace.ahead == 0
        called = await own.called(self._member.encode(), min(self._pace.look_at(now), self._deadline))
        if called:
            self._pace.called()
        return True, called or self._pace.ahead == 0

    def _leave(self) -> None:
        """Leave the queue, and give back the connection."""
        own, alive = self._own, self._own is not None and self._own.link is not None
        if self._joined or self._doubtful:
            undo = Undo(self._attempt.keys, f"{self._member} ", self._member, KEPT / 1000)  # the vote of no holder
            for index in self._doubtful | (set() if alive or not self._joined else {self._lead}):
                self._nodes.undo_later(index, undo)
            if self._joined and own is not None and alive:
                own.send(undo_request(undo), clock.now() + LATE_REPLY)
            self._joined = False
            self._doubtful.clear()
        self._own = None
        if own is not None:
            own.node.put(own)

    def end(self) -> None:
        """Leave the queue at the nodes and that of the process. May be repeated after an interrupt."""
        self._leave()
        self._places.leave(self._place)
