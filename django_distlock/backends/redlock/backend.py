"""Redlock: one lock on N independent Redis nodes, held by whom a majority has granted it.

https://redis.io/docs/latest/develop/use/patterns/distributed-locks/. Not for correctness: see docs/backends/redlock.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django_distlock.backends.base import Backend
from django_distlock.backends.redis.introspection import HolderInfo
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, arun, run
from django_distlock.records import Claim, Finding, Grant, LockInfo, drift

from . import doctor
from .acquire import LAST_LOOK, Ballot, again_question, extend_question, release_question, stay_nowhere
from .checks import check_nodes, targets_of
from .ears import Ears
from .election import attempt, confirmed, lead_of, repeated
from .inquiry import Outcome
from .introspection import break_everywhere, listing
from .pool import TICK, Crowded, Lanes
from .quorum import Answer, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from django.core.checks import CheckMessage

    from django_distlock.keys import LockKey

    from .inquiry import Question
    from .lanes import Lane

# A node's time for an answer: this share of the TTL, but not less than this many seconds.
SHARE_OF_TTL, LEAST_NODE_TIMEOUT = 0.05, 0.05
# So long may one attempt take: at least, also for a caller that does not wait, and at most. Seconds.
LEAST_PATIENCE, LONGEST = 0.5, 5.0
# So long may a release or a look by an operator take; and a renewal, for which all others wait. Seconds.
PATIENCE, RENEWAL_PATIENCE = 2.0, 1.0
# A name that was busy within this time is asked for at one node first; seconds.
BUSY = 1.0
CACHED_NAMES = 4096


class RedlockBackend(Backend):
    """OPTIONS: ``nodes``, a list of URLs (``redis://``, ``rediss://``, ``unix://``) or of aliases of django-redis in
    CACHES: an odd number of independent servers.

    ``node_timeout``: seconds that a node has for an answer (default: 5 % of the TTL, at least 0.05).
    """

    supports_ttl = True
    supports_break = True
    queues_waiters = True
    option_names: ClassVar[frozenset[str]] = frozenset({"nodes", "node_timeout"})

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self._targets = targets_of(alias, options)
        self._timeout: float | None = options.get("node_timeout")
        self._ears = Ears(self._targets)
        self._start()

    def _start(self) -> None:
        self._lanes = Lanes(self._targets, f"distlock-{self.alias}-connect", lambda when: self.wake_at(when))
        self._teller = HolderInfo()
        # claims that wait, and their grant until the caller surely has it: who is interrupted on the way withdraws
        self._claims: dict[str, Ballot | Grant] = {}
        self._busy: dict[bytes, float] = {}

    def _patience(self, ttl: float) -> float:
        """How long one node has for an answer."""
        return self._timeout or max(LEAST_NODE_TIMEOUT, ttl * SHARE_OF_TTL)

    # acquire

    def listed_as(self, key: LockKey) -> str:
        return key.text

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return run(self._acquire(claim, wait))

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return await arun(self._acquire(claim, wait))

    def _acquire(self, claim: Claim, wait: float) -> Flow[Grant | None]:
        now = monotonic()
        until = min(claim.answer_by or now + max(wait, LEAST_PATIENCE), now + LONGEST)
        known = self._claims.get(claim.token)
        ballot = known if isinstance(known, Ballot) else None
        if ballot is not None and wait < LAST_LOOK:
            ballot.last_word()
            return None
        try:
            lane = yield from self._lanes.enter(ballot.lane if ballot else None, until - now)
        except Crowded:
            if wait > 0:
                return None  # all the time was spent behind others of this process
            raise
        if ballot is None or lane is not ballot.lane:
            try:
                ballot = self._claims[claim.token] = Ballot(claim, self._teller.facts(claim.key), lane)
            except BaseException:
                lane.leave()
                raise
        lead = 0
        try:
            try:
                lead = lead_of(ballot)
                if wait > 0:
                    ballot.ear = self._ears.take(lead)
                grant = yield from self._attempts(ballot, lead, wait > 0, until)
            except BaseException:  # it has asked, and stands in line, all the same
                ballot.record(lane.slots, lead if wait > 0 else None)
                raise
            finally:
                lane.leave()
            if grant is None and wait > 0:
                yield from ballot.rest(self._ears, lead, now + wait)
            return grant
        except BaseException:
            self._claims.pop(claim.token, None)
            ballot.take_back()
            ballot.leave()
            raise
        finally:
            ear, ballot.ear = ballot.ear, None
            if ear is not None:
                self._ears.give(lead, ear)

    def _attempts(self, ballot: Ballot, lead: int, waits: bool, until: float) -> Flow[Grant | None]:
        claim, patience = ballot.claim, self._patience(ballot.ttl)
        for last in (False, True):
            asked = monotonic()
            busy = ballot.was_refused or asked - self._busy.get(claim.key.digest, -BUSY) < BUSY
            busy = not ballot.due(asked) and busy
            outcome = yield from attempt(ballot, lead, waits=waits, busy=busy, patience=patience, until=until)
            if outcome.verdict is Verdict.GRANTED:
                if outcome.answers[lead] is Answer.REFUSED or ballot.votes[lead] is None:
                    ballot.leave()  # it still stands in line there, or where it stood before
                grant = self._claims[claim.token] = ballot.grant(asked)
                return grant
            ballot.take_back(outcome.answers)
            # connections that had broken unnoticed: once more on new ones
            if not outcome.lost or last:
                break
        if outcome.verdict is Verdict.REFUSED:
            self._note_busy(claim.key)
            ballot.refused(split=outcome.answers[lead] is not Answer.REFUSED)
            if not waits:
                self._claims.pop(claim.token, None)
            return None
        error = self._lanes.unavailable(outcome)
        if waits and ballot.disturbed(error, until - asked, patience, until):
            return None
        raise error

    def _note_busy(self, key: LockKey) -> None:
        if len(self._busy) >= CACHED_NAMES:
            self._busy.clear()
        self._busy[key.digest] = monotonic()

    def pause(self, claim: Claim, attempt: int) -> float:
        ballot = self._claims.get(claim.token)
        if not isinstance(ballot, Ballot):
            return super().pause(claim, attempt)
        return ballot.pause(len(self._claims))

    def withdraw(self, claim: Claim) -> None:
        left = self._claims.get(claim.token)
        if isinstance(left, Ballot):
            left.leave()
        elif left is not None:  # granted to nobody, because the attempt was interrupted
            self._take_back(left)
        self._claims.pop(claim.token, None)  # at last: this, too, may be interrupted, and is then done again

    def _take_back(self, grant: Grant) -> None:
        """Without waiting for an answer."""
        question = release_question(grant)
        lane = grant.session.lane
        if lane.closed:
            lane = self._lanes.lane(0)
        for index, vote in enumerate(grant.session.votes):
            if vote is not None:
                lane.tell(index, question)

    async def awithdraw(self, claim: Claim) -> None:
        self.withdraw(claim)

    # while it is held

    def release(self, grant: Grant) -> bool:
        return run(self._release(grant))

    async def arelease(self, grant: Grant) -> bool:
        return await arun(self._release(grant))

    def _release(self, grant: Grant) -> Flow[bool]:
        claim = grant.claim
        self._claims.pop(claim.token, None)
        question = release_question(grant)
        try:
            outcome = yield from self._confirmed(grant, question, claim.ttl or 0.0, PATIENCE)
        except BaseException:
            self._take_back(grant)
            raise
        if outcome.verdict is Verdict.UNAVAILABLE:
            in_time = grant.valid_until is not None and monotonic() < grant.valid_until
            if in_time and repeated(outcome):
                return True  # sent twice: the first one did it, unless the lease had ended
            raise self._lanes.unavailable(outcome)
        return outcome.verdict is Verdict.GRANTED

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        return run(self._extend(grant, ttl))

    async def aextend(self, grant: Grant, ttl: float) -> Grant | None:
        return await arun(self._extend(grant, ttl))

    def _extend(self, grant: Grant, ttl: float) -> Flow[Grant | None]:
        asked = monotonic()
        question, again = extend_question(grant, ttl), again_question(grant, ttl)
        outcome = yield from self._confirmed(grant, question, ttl, RENEWAL_PATIENCE, again)
        if outcome.verdict is Verdict.UNAVAILABLE:
            raise self._lanes.unavailable(outcome)
        if outcome.verdict is Verdict.REFUSED:
            self._take_back(grant)  # also where it is not ours: it may stand in line there
            return None
        return grant._replace(acquired_at=asked, valid_until=asked + ttl - drift(ttl))

    def verify(self, grant: Grant) -> bool:
        return run(self._verify(grant))

    async def averify(self, grant: Grant) -> bool:
        return await arun(self._verify(grant))

    def _verify(self, grant: Grant) -> Flow[bool]:
        question = extend_question(grant, None)
        outcome = yield from self._confirmed(grant, question, grant.claim.ttl or 0.0, PATIENCE)
        if outcome.verdict is Verdict.UNAVAILABLE:
            raise self._lanes.unavailable(outcome)
        return outcome.verdict is Verdict.GRANTED

    def _confirmed(
        self, grant: Grant, question: Question, ttl: float, longest: float, again: Question | None = None
    ) -> Flow[Outcome]:
        """Ask about a lock that was ours."""
        until = monotonic() + longest
        lane = yield from self._lanes.enter(grant.session.lane, longest)
        try:
            patience = self._patience(ttl)
            return (yield from confirmed(lane, grant.session.votes, question, again, patience=patience, until=until))
        finally:
            lane.leave()

    # what an operator sees and does

    def diagnose(self) -> Iterable[Finding]:
        return doctor.findings(self.alias, self._targets)

    def inspect(self) -> Iterable[LockInfo]:
        return run(self._alone(lambda lane: listing(self.alias, lane, PATIENCE)))

    def break_lock(self, info: LockInfo) -> bool:
        return bool(run(self._alone(lambda lane: break_everywhere(lane, info, PATIENCE))))

    def _alone(self, work: Callable[[Lane], Flow[Any]]) -> Flow[Any]:
        """With all nodes, for an operator."""
        lane = yield from self._lanes.enter(None, PATIENCE)
        try:
            outcome = yield from work(lane)
        finally:
            lane.leave()
        if isinstance(outcome, Outcome):
            raise self._lanes.unavailable(outcome)
        return outcome

    def tick(self, now: float) -> float | None:
        due = self._lanes.tick(now)
        if self._ears.tick(now):
            due = now + TICK
        for token, claim in list(self._claims.items()):
            if isinstance(claim, Grant) and now - claim.acquired_at > TICK:
                stay_nowhere(claim)  # nobody need release what expires
                self._claims.pop(token, None)
        return due

    def check(self) -> list[CheckMessage]:
        return check_nodes(self.alias, self.options["nodes"], self._targets)

    def close(self) -> None:
        self._ears.close()
        self._lanes.close()
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        self._ears.abandon()
        self._lanes.abandon()
        self._start()
