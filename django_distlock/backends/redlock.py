"""Redlock: one lock on N independent Redis nodes, held by whom a majority has granted it.

https://redis.io/docs/latest/develop/use/patterns/distributed-locks/. It survives the loss of a minority of the nodes.
It gives no fencing token, and it is not for correctness: see docs/backends/redlock.md.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import ImproperlyConfigured

from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import Claim, Grant, LockInfo, drift
from django_distlock.waiting import Call, Flow, adrive, drive

from .base import Backend
from .redis_target import Target
from .redlock_checks import check_nodes
from .redlock_claims import DISTURBANCE, Ballot, Holder, extend_question, passed_over, release_question
from .redlock_lanes import Lane, Outcome
from .redlock_listing import break_everywhere, listing
from .redlock_nodes import Node
from .redlock_quorum import Answer, Verdict, confirm, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from django.core.checks import CheckMessage

    from django_distlock.names import LockKey

    from .redlock_lanes import Judge, Question
    from .redlock_nodes import Slot

# A node's time for an answer: this share of the TTL, but not less than this many seconds.
SHARE_OF_TTL, LEAST_NODE_TIMEOUT = 0.05, 0.05
# A caller that does not wait still grants the nodes this long to answer; seconds.
LEAST_PATIENCE = 0.5
# So long may a release or a look by an operator take; and a renewal, for which all others wait. Seconds.
PATIENCE, RENEWAL_PATIENCE = 2.0, 1.0
# A release waits so much longer for the rest of the nodes, so that nobody meets what is just being deleted. Seconds.
SETTLE = 0.005
# The connections to each node: names that share one wait for each other's answers.
LANES = 8
# A name that was busy within this time is asked for at one node first; seconds.
BUSY = 1.0
TICK = 0.5
CACHED_NAMES = 4096


class RedlockBackend(Backend):
    """OPTIONS: ``nodes``, a list of URLs (``redis://``, ``rediss://``, ``unix://``) or aliases of django-redis in CACHES;
    an odd number of independent servers. ``node_timeout``: seconds that a node has for an answer (default: 5 % of the
    TTL, at least 0.05)."""

    supports_ttl = True
    supports_break = True
    queues_waiters = True
    option_names: ClassVar[frozenset[str]] = frozenset({"nodes", "node_timeout"})

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        given, where = options.get("nodes"), f"DISTLOCK[{alias!r}]"
        if not isinstance(given, (list, tuple)) or not given or not all(isinstance(node, str) for node in given):
            raise ImproperlyConfigured(f"{where}: OPTIONS['nodes'] must be a list of URLs or of aliases in CACHES.")
        timeout = options.get("node_timeout")
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
            raise ImproperlyConfigured(f"{where}: OPTIONS['node_timeout'] must be a number of seconds.")
        if timeout is not None and not 0 < timeout < math.inf:
            raise ImproperlyConfigured(f"{where}: OPTIONS['node_timeout'] must be above zero and finite.")
        self._targets = [Target(url=node) if "://" in node else Target(cache=node) for node in given]
        self._timeout: float | None = timeout
        self._start()

    def _start(self) -> None:
        name = f"distlock-{self.alias}-connect"
        self._nodes = [Node(number, target, name) for number, target in enumerate(self._targets, 1)]
        self._lanes: dict[int, Lane] = {}
        self._holder = Holder()
        # Claims that wait or are being asked for, and their grant until the caller surely has it: who is interrupted on
        # the way withdraws, and what was granted then is given back.
        self._claims: dict[str, Ballot | Grant] = {}
        self._busy: dict[bytes, float] = {}

    def _lane(self, number: int) -> Lane:
        lane = self._lanes.get(number)
        if lane is None:
            # two threads may make one each: that of the first is used
            mine = Lane(self._nodes)
            lane = self._lanes.setdefault(number, mine)
            if lane is not mine:
                mine.close()
            self.wake_at(time.monotonic() + TICK)
        return lane

    def _lane_of(self, key: LockKey) -> Lane:
        return self._lane(key.digest[0] % LANES)

    def _lead(self, key: LockKey, lane: Lane) -> int:
        """The node at which waiters stand: the same for all processes as long as it is well."""
        first, now = key.digest[1] % len(self._nodes), time.monotonic()
        order = [(first + step) % len(self._nodes) for step in range(len(self._nodes))]
        return next((index for index in order if lane.lines[index].healthy(now)), first)

    def _patience(self, ttl: float, now: float, until: float) -> float:
        wanted = self._timeout or max(LEAST_NODE_TIMEOUT, ttl * SHARE_OF_TTL)
        return max(0.0, min(wanted, until - now))

    # acquire

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return drive(self._acquire(claim, wait))

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return await adrive(self._acquire(claim, wait))

    def _acquire(self, claim: Claim, wait: float) -> Flow[Grant | None]:
        now = time.monotonic()
        until = max(claim.answer_by, now + min(wait, LEAST_PATIENCE) if claim.answer_by else now + LEAST_PATIENCE)
        lane = self._lane_of(claim.key)
        ballot = self._claims.get(claim.token)
        if not isinstance(ballot, Ballot):
            ballot = self._claims[claim.token] = Ballot(claim, self._holder.facts(claim.key.name))
        entered = asked = False
        try:
            entered = lane.turn.try_acquire() or (yield Call(lane.turn, "acquire", (until - now,)))
            if not entered:
                if wait > 0:
                    return None  # all the time was spent behind others of this process
                self._claims.pop(claim.token, None)
                raise BackendUnavailable("The connections to the Redis nodes are busy.")
            asked = True
            lane.slots = []
            return (yield from self._attempts(lane, ballot, wait, until))
        except BaseException:
            self._claims.pop(claim.token, None)
            if asked:
                ballot.take_back(lane)
            ballot.leave(lane)
            raise
        finally:
            if entered:
                lane.turn.release()

    def _attempts(self, lane: Lane, ballot: Ballot, wait: float, until: float) -> Flow[Grant | None]:
        claim, waits = ballot.claim, wait > 0
        lead = self._lead(claim.key, lane)
        for last in (False, True):
            asked = time.monotonic()
            outcome = yield from self._attempt(lane, ballot, lead, waits, until)
            if outcome.verdict is Verdict.GRANTED:
                grant = self._granted(ballot, asked)
                self._claims[claim.token] = grant
                return grant
            ballot.take_back(lane, outcome.answers)
            # connections that had broken unnoticed: once more on new ones
            if not outcome.lost or last:
                break
        if outcome.verdict is Verdict.REFUSED:
            self._note_busy(claim.key)
            ballot.disturbed_at = None
            if outcome.answers[lead] is not Answer.REFUSED:
                ballot.split()
            if not waits:
                self._claims.pop(claim.token, None)
            return None
        now = time.monotonic()
        if ballot.disturbed_at is None:
            ballot.disturbed_at = now
        ballot.split()
        patience = self._patience(ballot.ttl, now, math.inf)
        if waits and now - ballot.disturbed_at < DISTURBANCE and until - now > patience + SETTLE:
            return None
        raise self._unavailable(outcome)

    def _attempt(self, lane: Lane, ballot: Ballot, lead: int, waits: bool, until: float) -> Flow[Outcome]:
        """Ask everybody at once; but where the name is busy, ask everybody only when the first of them has granted it."""
        asked = time.monotonic()
        patience = self._patience(ballot.ttl, asked, until)
        nodes = len(self._nodes)
        if waits and asked - self._busy.get(ballot.claim.key.digest, -BUSY) < BUSY:
            questions = ballot.questions(nodes, lead, waits=True, only_lead=True)
            outcome = yield from lane.ask(questions, _one(lead), asked=asked, patience=patience)
            ballot.note(outcome, lead, waits)
            if outcome.verdict is Verdict.REFUSED:
                return outcome
            if outcome.verdict is Verdict.GRANTED:
                ballot.led_by = lead
        questions = ballot.questions(nodes, lead, waits=waits)
        outcome = yield from lane.ask(questions, _majority(lead, ballot.ttl, patience), asked=asked, patience=patience)
        ballot.note(outcome, lead, waits)
        return outcome

    def _note_busy(self, key: LockKey) -> None:
        if len(self._busy) >= CACHED_NAMES:
            self._busy.clear()
        self._busy[key.digest] = time.monotonic()

    @staticmethod
    def _granted(ballot: Ballot, asked: float) -> Grant:
        valid_until = asked + ballot.ttl - drift(ballot.ttl)
        return Grant(claim=ballot.claim, acquired_at=asked, valid_until=valid_until, session=ballot.vote)

    def pause(self, claim: Claim, attempt: int) -> float:
        ballot = self._claims.get(claim.token)
        return ballot.pause() if isinstance(ballot, Ballot) else super().pause(claim, attempt)

    def withdraw(self, claim: Claim) -> None:
        left, lane = self._claims.pop(claim.token, None), self._lane_of(claim.key)
        if isinstance(left, Ballot):
            left.leave(lane)
        elif left is not None:  # granted to nobody, because the attempt was interrupted
            question = release_question(claim.key, left.session, claim.ttl or 0.0)
            for index in range(len(self._nodes)):
                lane.tell(index, question)

    async def awithdraw(self, claim: Claim) -> None:
        self.withdraw(claim)

    # while it is held

    def release(self, grant: Grant) -> bool:
        return drive(self._release(grant))

    async def arelease(self, grant: Grant) -> bool:
        return await adrive(self._release(grant))

    def _release(self, grant: Grant) -> Flow[bool]:
        claim = grant.claim
        self._claims.pop(claim.token, None)
        question = release_question(claim.key, grant.session, claim.ttl or 0.0)
        lane = self._lane_of(claim.key)
        try:
            outcome = yield from self._confirmed(claim.key, question, claim.ttl or 0.0, PATIENCE, SETTLE)
        except BaseException:
            for index in range(len(self._nodes)):
                lane.tell(index, question)
            raise
        if outcome.verdict is Verdict.UNAVAILABLE:
            in_time = grant.valid_until is not None and time.monotonic() < grant.valid_until
            if in_time and _repeated(outcome):
                return True  # sent twice: the first one did it, unless the lease had ended
            raise self._unavailable(outcome)
        return outcome.verdict is Verdict.GRANTED

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        return drive(self._extend(grant, ttl))

    async def aextend(self, grant: Grant, ttl: float) -> Grant | None:
        return await adrive(self._extend(grant, ttl))

    def _extend(self, grant: Grant, ttl: float) -> Flow[Grant | None]:
        asked = time.monotonic()
        key = grant.claim.key
        question = extend_question(key, grant.session, ttl)
        outcome = yield from self._confirmed(key, question, ttl, RENEWAL_PATIENCE)
        if outcome.verdict is Verdict.UNAVAILABLE:
            raise self._unavailable(outcome)
        if outcome.verdict is Verdict.REFUSED:
            undo, lane = release_question(key, grant.session, ttl), self._lane_of(key)
            for index, answer in enumerate(outcome.answers):
                if answer is not Answer.REFUSED:
                    lane.tell(index, undo)
            return None
        return grant._replace(acquired_at=asked, valid_until=asked + ttl - drift(ttl))

    def verify(self, grant: Grant) -> bool:
        return drive(self._verify(grant))

    async def averify(self, grant: Grant) -> bool:
        return await adrive(self._verify(grant))

    def _verify(self, grant: Grant) -> Flow[bool]:
        question = extend_question(grant.claim.key, grant.session, None)
        outcome = yield from self._confirmed(grant.claim.key, question, grant.claim.ttl or 0.0, PATIENCE)
        if outcome.verdict is Verdict.UNAVAILABLE:
            raise self._unavailable(outcome)
        return outcome.verdict is Verdict.GRANTED

    def _confirmed(
        self, key: LockKey, question: Question, ttl: float, longest: float, settle: float = 0.0
    ) -> Flow[Outcome]:
        """Ask everybody about a lock that was ours."""
        now = time.monotonic()
        lane = self._lane_of(key)
        entered = lane.turn.try_acquire() or (yield Call(lane.turn, "acquire", (longest,)))
        if not entered:
            raise BackendUnavailable("The connections to the Redis nodes are busy.")
        try:
            asked = time.monotonic()
            patience = self._patience(ttl, asked, now + longest)
            questions = [question] * len(self._nodes)
            return (
                yield from lane.ask(questions, _confirmation(patience), asked=asked, patience=patience, settle=settle)
            )
        finally:
            lane.turn.release()

    def _unavailable(self, outcome: Outcome) -> BackendUnavailable:
        silent = [node for node, answer in zip(self._nodes, outcome.answers, strict=True) if answer in UNHEARD]
        error = BackendUnavailable(
            f"{len(silent)} of {len(self._nodes)} Redis nodes do not answer: "
            f"{', '.join(str(node.number) for node in silent)}."
        )
        error.__cause__ = next((node.error for node in silent if node.error is not None), None) or TimeoutError(
            "no answer in time"
        )
        return error

    # what an operator sees and does

    def inspect(self) -> Iterable[LockInfo]:
        return drive(self._alone(lambda lane: listing(self.alias, lane, PATIENCE)))

    def break_lock(self, info: LockInfo) -> bool:
        return bool(drive(self._alone(lambda lane: break_everywhere(lane, info, PATIENCE))))

    def _alone(self, work: Callable[[Lane], Flow[Any]]) -> Flow[Any]:
        """On a lane of its own: a listing takes its time."""
        lane = self._lane(LANES)
        if not (yield Call(lane.turn, "acquire", (PATIENCE,))):
            raise BackendUnavailable("The connections to the Redis nodes are busy.")
        try:
            outcome = yield from work(lane)
        finally:
            lane.turn.release()
        if isinstance(outcome, Outcome):
            raise self._unavailable(outcome)
        return outcome

    def tick(self, now: float) -> float | None:
        for number, lane in list(self._lanes.items()):
            if not lane.turn.try_acquire():
                continue
            idle = lane.idle(now)
            if idle:
                self._lanes.pop(number, None)
            else:
                lane.tend(now)
            lane.turn.release()
            if idle:
                lane.close()
        for token, claim in list(self._claims.items()):
            if isinstance(claim, Grant) and now - claim.acquired_at > TICK:
                self._claims.pop(token, None)
        return now + TICK if self._lanes or self._claims else None

    def check(self) -> list[CheckMessage]:
        return check_nodes(self.alias, self.options["nodes"], self._targets)

    def close(self) -> None:
        lanes, self._lanes = list(self._lanes.values()), {}
        for lane in lanes:
            lane.close()
        for node in self._nodes:
            node.join()
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        for lane in self._lanes.values():
            lane.abandon()
        self._start()


UNHEARD = (Answer.FAILED, Answer.PENDING, Answer.SLOW)


def _majority(lead: int, ttl: float, patience: float) -> Judge:
    def judge(answers: Sequence[Answer], elapsed: float, slots: Sequence[Slot | None]) -> Verdict:
        if passed_over(slots, lead):
            return Verdict.REFUSED
        return decide(answers, elapsed=elapsed, ttl=ttl, patience=patience)

    return judge


def _one(lead: int) -> Judge:
    verdicts = {Answer.GRANTED: Verdict.GRANTED, Answer.REFUSED: Verdict.REFUSED, Answer.FAILED: Verdict.UNAVAILABLE}

    def judge(answers: Sequence[Answer], elapsed: float, slots: Sequence[Slot | None]) -> Verdict:
        return verdicts.get(answers[lead], Verdict.WAIT)

    return judge


def _confirmation(patience: float) -> Judge:
    def judge(answers: Sequence[Answer], elapsed: float, slots: Sequence[Slot | None]) -> Verdict:
        return confirm(answers, elapsed=elapsed, patience=patience)

    return judge


def _repeated(outcome: Outcome) -> bool:
    """Is what the nodes failed to say a "no" to something asked twice?"""
    return any(slot is not None and slot.done and slot.reply == 0 for slot in outcome.slots)
