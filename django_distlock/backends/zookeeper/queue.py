"""One contender in the queue of one lock: its node, and how it waits for its turn.

Source: the recipes of ZooKeeper's manual (https://zookeeper.apache.org/doc/r3.8.0/recipes.html).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType

from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import SILENCE
from django_distlock.concurrency.flow import clean_up
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import new_token

from .nodes import LockNode, is_exclusive, mode_of, place_of, queue, turn
from .session import ConnectionBroken, NoAnswer, SessionEnded, Sleeper, ZooKeeperSession

if TYPE_CHECKING:
    from django_distlock.records import Claim

    from .session import Request

# A waiter that has read the queue this long ago reads it again before it is granted the lock; seconds.
TRUST = 0.25


class Contender:
    """One node of this process, from before its creation until its deletion."""

    def __init__(self, session: ZooKeeperSession, claim: Claim, data: bytes, acl: Any) -> None:
        self.session = session
        self.parent = f"{session.path}/{claim.key.path}"
        self.path: str | None = None
        self.czxid = 0
        self.since = 0.0
        # whether another client has deleted the node of a held lock
        self.broken = False
        self.watched = False
        # whether the release is to be marked for the next in line, which costs more than a mere deletion: there is one
        # more often than not where this contender had to wait
        self.marks = False
        self._token = new_token()
        self._prefix = f"{self.parent}/{self._token}-{mode_of(claim)}-"
        self._exclusive = not (claim.shared or claim.limit)
        self._data, self._acl = data, acl
        # whether there may be a node whose creation was not answered, and kazoo's result of that
        self._creating = False
        self._creation: Any = None

    async def acquire(self, until: float, answer_by: float) -> bool:
        """Wait for the turn until the monotonic time ``until``. Returns False if it did not come.

        The first answer has time until ``answer_by``. Raises BackendUnavailable. Who does not get the lock calls
        :meth:`abandon`.
        """
        try:
            return await self._wait(until, answer_by)
        except (GeneratorExit, BackendUnavailable):
            raise
        except BaseException:  # cancelled or interrupted: the next one is not to find a node that will be deleted
            if self._creating:
                await clean_up(self._find(clock.now() + SILENCE))
            raise

    async def _wait(self, until: float, answer_by: float) -> bool:
        session, waits = self.session, until > clock.now()
        nodes = await self._join(answer_by)
        while not await self._in_turn(nodes, until):
            now = clock.now()
            if now >= until:
                if waits and session.in_doubt() and now >= session.heard_at + SILENCE:
                    raise NoAnswer(session.failure(None))
                return False
            with contextlib.suppress(NoAnswer):  # the time is over, and the last answer said that it is busy
                nodes = await self._join(max(until, now + SILENCE))
        if self.path is None or not session.lives():  # the answer was read late: others may hold the lock by now
            raise SessionEnded(session.failure(None))
        self.since = clock.now()
        session.held[self.path] = self
        return True

    async def _in_turn(self, nodes: list[LockNode], until: float) -> bool:
        """Return True if it is this contender's turn, else False after a change of the node ahead.

        The holder of an exclusive lock marks its release (see :meth:`ZooKeeperSession.release_node`). No node is left
        ahead of a holder's, and none can come there later: so the next in line holds the lock from the mark on, and
        need not read the queue again. A node that is deleted without the mark may have been a waiter's, with others
        ahead of it. After a longer wait the queue is read in any case: an operator may have deleted this node.
        """
        listed_at = clock.now()
        place = place_of(nodes, self._token)
        if place is None:  # another client has deleted the node
            self.path = None
            return False
        granted, behind = turn(nodes, place)
        if granted:
            return True
        if listed_at < until:
            self.marks = self._exclusive
            with contextlib.suppress(ConnectionBroken, NoAnswer):  # the queue is read again, or the time is over
                released = await self._released(behind, until)
                return released and clock.now() - listed_at < TRUST and not self.session.in_doubt()
        return False

    async def _released(self, behind: str | None, until: float) -> bool:
        """Wait for a change of the node ``behind`` which this one stands, or of the whole queue if it is None.

        Returns True if it was the marked release of an exclusive lock.
        """
        session = self.session
        path = self.parent if behind is None else f"{self.parent}/{behind}"
        with Sleeper(session, path) as sleeper:
            if behind is None:
                (names,) = await session.ask(until, lambda kazoo: kazoo.get_children_async(path, watch=session.changed))
                nodes = queue(names or ())
                place = place_of(nodes, self._token)
                waits = place is not None and not turn(nodes, place).granted
            else:  # not exists(), which leaves a watch behind for a node that will never exist again
                (found,) = await session.ask(until, lambda kazoo: kazoo.get_async(path, watch=session.changed))
                waits = found is not None
            if waits:
                await sleeper.park(until - clock.now())
        return sleeper.event == EventType.CHANGED and is_exclusive(path)

    # creation

    async def _join(self, until: float) -> list[LockNode]:
        """Return the queue with this contender's node in it, which is created if it does not exist."""
        while True:
            with contextlib.suppress(ConnectionBroken):  # ask again on the next connection
                if self.path is not None:
                    (names,) = await self.session.ask(until, self._children)
                    if names is None:
                        self.path = None  # another client has deleted the whole queue
                elif self._creating:
                    names = await self._find(until)
                else:
                    names = await self._create(until)
                if names is not None:
                    return queue(names)

    async def _ask(self, until: float, *requests: Request) -> list[Any]:
        """Give each answer a second: however short the timeout is, a server that speaks is not called unavailable."""
        return await self.session.ask(max(until, min(clock.now(), until) + SILENCE), *requests)

    def _children(self, kazoo: Any) -> Any:
        return kazoo.get_children_async(self.parent)

    async def _create(self, until: float) -> list[str] | None:
        session = self.session
        node, names = await self._ask(until, self._send_creation, self._children)
        self._creating = node is not None
        if node is None:
            await self._create_parents(until)
            return None
        self._created(session.kazoo.unchroot(node[0]), node[1])
        found: list[str] | None = names  # None: deleted between the two
        return found

    def _send_creation(self, kazoo: Any) -> Any:
        self._creating = True
        self._creation = self.session.create(self._prefix, self._data, self._acl)
        return self._creation

    def _created(self, path: str, stat: Any) -> None:
        self.czxid, self.path = stat.czxid, path
        self._creating = False

    async def _find(self, until: float) -> list[str] | None:
        """Look for the node whose creation was not answered. None: there is none.

        A second node beside it would wait behind it.
        """
        _, names = await self._ask(until, lambda kazoo: kazoo.sync_async(self.parent), self._children)
        found: list[str] = names or []
        name = next((name for name in found if name.startswith(self._token)), "")
        if name:
            (stat,) = await self._ask(until, lambda kazoo: kazoo.exists_async(f"{self.parent}/{name}"))
            if stat is not None:
                self._created(f"{self.parent}/{name}", stat)
                return found
        self._creating = False
        return None

    async def _create_parents(self, until: float) -> None:
        session = self.session
        (made,) = await self._ask(until, lambda kazoo: session.create(self.parent, b"", self._acl, container=True))
        if made is None:  # it exists by now, or the nodes above it do not
            (made,) = await self._ask(until, lambda kazoo: kazoo.ensure_path_async(session.path, self._acl))
            if made is None:
                raise BackendUnavailable(session.failure(NoNodeError("the chroot in OPTIONS['hosts'] does not exist")))

    # deletion

    def abandon(self) -> None:
        """Delete the node without waiting, even if its creation was not answered yet. It may be repeated."""
        if self.path is not None:
            self.session.held.pop(self.path, None)
            self.session.doom(self.path)
        elif self._creating:
            made = self._creation
            known = made is not None and made.successful()  # what was refused was the look at the queue
            self.session.doom(self.session.kazoo.unchroot(made.value[0]) if known else self._prefix, whole=known)
        self.path, self._creating = None, False  # last, because an interrupted call is repeated

    # while it is held

    def watch(self) -> None:
        """Have the server report a deletion of the node by another client."""
        path, session = self.path, self.session
        if path is not None:
            self.watched = True
            session.send(lambda kazoo: kazoo.get_async(path, watch=session.changed), self._watch_set)

    def _watch_set(self, answer: Any) -> None:
        if answer.exception is not None:
            self.session.unwatched(self, deleted=isinstance(answer.exception, NoNodeError))
