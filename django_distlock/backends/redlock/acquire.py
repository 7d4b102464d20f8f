"""One claim on its way to a majority: what it is known by at the nodes, and how long it pauses between attempts."""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING, NamedTuple

from django_distlock.backends.redis.pool import LinkError
from django_distlock.concurrency.clock import monotonic
from django_distlock.records import Grant, drift

from .ears import called
from .inquiry import Question
from .quorum import Answer
from .scripts import ACQUIRE, EXTEND, GRACE, JOIN, KEPT, NO_QUEUE, PLACES, RELEASE, RESPECT, keys_of, vote_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_distlock.backends.redis.pool import Link
    from django_distlock.concurrency.flow import Flow
    from django_distlock.records import Claim

    from .ears import Ears
    from .lanes import Lane
    from .nodes import Slot
    from .scripts import Keys

# Who listens looks all the same, at first after a short time and then less and less often: the call may have been lost,
# or the node that should call be of no use. Seconds.
FIRST_LOOK, LONGEST_LOOK = 0.25, 2.0
# When the lease of the holder has ended, the next in turn looks after the one time, each behind it after the other.
EXPIRED, LATER = 0.005, 0.25
# Who does not listen pauses for the one time its place in line, or for the other; or, if that is longer, for the third
# times the waiters of its process, but is seen again before it is passed over. Seconds.
NEXT, LONGEST_PAUSE, PER_CLAIM, MOST_PAUSE = 0.01, 0.05, 0.0005, 0.25
# Who is next in turn asks all nodes, and not only the one that keeps the queue, not more often than this; seconds.
ALL_ASKED = 0.15
# After a vote that nobody won: the random delay of the Redlock description, doubled each time. Seconds.
SPLIT = 0.002
# A node that grants alone for so long knows nothing of the holder; for less, the others may only be later to hear of a
# release. Seconds.
STRANGE = 0.05
# A waiter does not look again with less time than this; seconds.
LAST_LOOK = 0.003
# With less time than this a node cannot be expected to answer; seconds.
LEAST_LOOK = 0.05
# So long do nodes that do not answer count as a passing disturbance, if the caller has the time. Seconds.
DISTURBANCE = 0.5

# Of the process: whoever got a lock too late gives it back and asks for it anew with the same token.
_attempts = itertools.count()


class Session(NamedTuple):
    """Where a lock was taken, and what it is known by at the nodes. All that concerns it goes the same way.

    ``votes``: for each node the last request for its vote, None if it was never asked. If its reply was lost, the vote
    is being taken back there, at whatever time that arrives: it does not count, until it was given again.
    """

    lane: Lane
    vote: str
    holder: str
    votes: list[Slot | None]

    def __repr__(self) -> str:
        return f"<Session on {self.lane!r}>"  # the vote is the token


class Ballot:
    """The attempts at one claim, by somebody who has ``told`` of itself."""

    def __init__(self, claim: Claim, told: bytes, lane: Lane) -> None:
        self.claim = claim
        self.lane = lane
        self.keys = keys_of(claim.key.text)
        self.ttl = claim.ttl or 0.0
        self._told = told[1:].decode()
        self._holder = ""
        self.vote = vote_of(claim.token, next(_attempts))
        # see Session
        self.votes: list[Slot | None] = [None] * len(lane.lines)
        # the node at which it stands in the queue, and since when by that node's clock
        self.queued_at: int | None = None
        self._since = ""
        self._ahead = 0
        # when the lease of the holder ends, as that node said
        self._ends_at = 0.0
        # on which it listens; only in try_acquire
        self.ear: Link | None = None
        # has it been called? Or does it else know that there is no need to pause?
        self.called = self.ready = False
        # did the lead refuse it?
        self.in_line = False
        self._looks = 0
        self._splits = 0
        self._split_since: float | None = None
        # how many nodes in turn granted it alone: they do not know who has it, so that nobody can wait there
        self.strange_leads = 0
        self.was_refused = False
        self._all_asked_at = monotonic()
        self._disturbed_at: float | None = None
        self._error: Exception | None = None

    def questions(self, lead: int, *, waits: bool, only_lead: bool = False) -> list[Question | None]:
        """To all nodes, of which ``lead`` keeps the queue."""
        self.in_line = False
        self._holder = f'{{"since":{time.time_ns() // 1000},{self._told}'
        others = self._question(NO_QUEUE) if not only_lead else None
        found: list[Question | None] = [others] * len(self.lane.lines)
        found[lead] = self._question(JOIN if waits else RESPECT)
        return found

    def due(self, now: float) -> bool:
        """Is it time to ask everybody? Because it was called, or whatever the lead says: it may keep a key that nobody
        has a majority for."""
        called, self.called = self.called, False
        if called:
            return True
        if now - self._all_asked_at < ALL_ASKED:
            return False
        self._all_asked_at = now
        return self._ahead == 0

    def _question(self, mode: str) -> Question:
        channel = self.ear.channel if self.ear is not None else b""
        args = (mode, self.claim.token, self._since, channel)
        return acquire_question(self.keys, self.vote, self._holder, self.ttl, *args)

    def record(self, slots: Iterable[Slot | None], lead: int | None) -> None:
        """What was just asked. Whoever has asked ``lead`` stands in line there."""
        for index, slot in enumerate(slots):
            if slot is not None and slot.sent and slot.vote == self.vote:
                self.votes[index] = slot
                if index == lead and self.queued_at != lead:
                    self.leave()
                    self.queued_at = lead

    def take_back(self, answers: list[Answer] | None = None) -> None:
        """End the attempt: undo it wherever it may have succeeded. The next one has another vote."""
        question = Question(b"", vote=self.vote, undo=undo_of(self.keys, self.vote), ttl=self.ttl)
        for index, slot in enumerate(self.votes):
            refused = answers is not None and answers[index] is Answer.REFUSED
            # what was lost with its connection is owed already
            if slot is not None and not slot.lost and not refused:
                self.lane.tell(index, question)
        self.votes = [None] * len(self.votes)
        self.vote = vote_of(self.claim.token, next(_attempts))

    def leave(self) -> None:
        """Leave the queue."""
        if self.queued_at is not None:
            self.lane.tell(self.queued_at, leave_question(self.claim))
            self.queued_at = None

    def grant(self, asked: float) -> Grant:
        """It is ours, since a question put at ``asked``."""
        valid_until = asked + self.ttl - drift(self.ttl)
        session = Session(self.lane, self.vote, self._holder, self.votes)
        return Grant(claim=self.claim, acquired_at=asked, valid_until=valid_until, session=session)

    def note(self, slot: Slot | None) -> None:
        """What the lead said; it tells how long to pause."""
        reply = slot.reply if slot is not None and slot.done else None
        if not isinstance(reply, int):
            return
        if reply > 0:
            if reply > 1:
                self._since = str(reply)
            return
        left, self._ahead = divmod(-1 - reply, PLACES)
        self._ends_at = monotonic() + (left or GRACE) / 1000  # free: who comes first has been called
        self.in_line = True
        self._splits, self._split_since = 0, None

    def refused(self, *, split: bool) -> None:
        """It is busy. ``split``: nobody need have it, several may have got a part of it each."""
        self.was_refused, self._disturbed_at, self._error = True, None, None
        if split:
            self._splits = min(self._splits + 1, 5)
            self._split_since = self._split_since or monotonic()
            if monotonic() - self._split_since >= STRANGE:
                self.strange_leads, self._split_since = self.strange_leads + 1, None

    def disturbed(self, error: Exception, had: float, patience: float, until: float) -> bool:
        """Too few nodes answered, which ``had`` so many seconds of their ``patience``. May that pass, and is there time
        to see?"""
        if self._error is None and had < (patience if self.was_refused else LEAST_LOOK):
            return True  # they had no time: all we know is that it was busy
        now = monotonic()
        self._error = error
        self._splits = min(self._splits + 1, 5)
        if self._disturbed_at is None:
            self._disturbed_at = now
        return now - self._disturbed_at < DISTURBANCE and until > now

    def last_word(self) -> None:
        """The time is over. Raises what went wrong, if it was that and not somebody else who has the lock."""
        if self._error is not None:
            raise self._error

    def rest(self, ears: Ears, lead: int, deadline: float) -> Flow[None]:
        """Between two attempts, if it stands in line."""
        if self.in_line and self.ear is not None:
            yield from self._asleep(self.ear, deadline)
        elif self.in_line:
            self.ready = yield from ears.open(lead, deadline)

    def _asleep(self, ear: Link, deadline: float) -> Flow[None]:
        """Wait to be called by the node that keeps the line, or until it is time to look."""
        wait = min(FIRST_LOOK * 2**self._looks, LONGEST_LOOK) * (0.75 + random.random() / 4)  # noqa: S311
        look_at = min(monotonic() + wait, self._ends_at + EXPIRED + self._ahead * LATER)
        try:
            self.called = yield from called(ear, self.claim.token.encode(), min(look_at, deadline))
        except LinkError:  # many waiters may hear of that at once, so each pauses
            ear.close()
            return
        self._looks = 0 if self.called else min(self._looks + 1, 9)
        self.ready = True

    def pause(self, others: int) -> float:
        """Seconds until the next look, for one of so many who wait."""
        ready, self.ready = self.ready, False
        if ready:
            return 0.0
        if self._splits:
            return random.random() * SPLIT * float(2**self._splits)  # noqa: S311 - spreads retries, guards no secret
        pause = max(min(NEXT * (1 + self._ahead), LONGEST_PAUSE), min(others * PER_CLAIM, MOST_PAUSE))
        return pause * (0.5 + random.random() / 2)  # noqa: S311


def undo_of(keys: Keys, vote: str, member: str = "") -> bytes:
    # by its text: nobody listens for a NOSCRIPT
    return RELEASE.whole(keys, vote, member)


def acquire_question(
    keys: Keys, vote: str, holder: str, ttl: float, mode: str, member: str = "", since: str = "", channel: bytes = b""
) -> Question:
    args = (vote, max(1, int(ttl * 1000)), vote + holder, mode, member, since, channel)
    return Question(ACQUIRE.by_hash(keys, *args), ACQUIRE.whole(keys, *args), vote, undo_of(keys, vote), ttl)


def release_question(grant: Grant) -> Question:
    """Whoever was granted it before the node that keeps the line has answered may stand there still."""
    claim, vote = grant.claim, grant.session.vote
    keys, ttl = keys_of(claim.key.text), (grant.valid_until or 0.0) - grant.acquired_at
    whole = undo_of(keys, vote, claim.token)
    ttl = max(ttl, claim.ttl or 0.0)
    return Question(RELEASE.by_hash(keys, vote, claim.token), whole, vote, whole, ttl, repeat=True, final=True)


def leave_question(claim: Claim) -> Question:
    vote = vote_of(claim.token, "queue")  # nobody's: the lock itself stays as it is
    undo = undo_of(keys_of(claim.key.text), vote, claim.token)
    return Question(b"", vote=vote, undo=undo, ttl=KEPT / 1000, final=True)


def stay_nowhere(grant: Grant) -> None:
    """Leave the line of a node that did not grant it, and said so later than the others, or has not said anything."""
    for index, vote in enumerate(grant.session.votes):
        if vote is not None and not (isinstance(vote.reply, int) and vote.reply > 0):
            grant.session.lane.tell(index, leave_question(grant.claim))


def extend_question(grant: Grant, ttl: float | None) -> Question:
    """Without a TTL: only a look."""
    keys, vote = keys_of(grant.claim.key.text), grant.session.vote
    args = (vote, "" if ttl is None else max(1, int(ttl * 1000)))
    return Question(EXTEND.by_hash(keys, *args), EXTEND.whole(keys, *args), vote, repeat=True)


def again_question(grant: Grant, ttl: float) -> Question:
    """For the vote of a node that has lost it."""
    session: Session = grant.session
    return acquire_question(keys_of(grant.claim.key.text), session.vote, session.holder, ttl, NO_QUEUE)
