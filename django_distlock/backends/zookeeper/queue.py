"""One contender in the queue of one lock: its node, and the node that it waits for.

Source: the recipes of ZooKeeper's manual (https://zookeeper.apache.org/doc/r3.8.0/recipes.html). When the answer to the
creation of a node was lost, the node is found by its token and deleted before another one is created.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType

from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import clean_up
from django_distlock.concurrency.parking import Parker
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import new_token

from .nodes import LockNode, is_exclusive, mode_of, place_of, queue, turn
from .session import ConnectionBroken, NoAnswer, SessionEnded, ZooKeeperSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock.records import Claim

# A contender whose time is over waits this long for the deletion of its node; seconds.
LEAVE_TIMEOUT = 0.02
# A waiter that has read the queue this long ago reads it again before it is granted the lock; seconds.
TRUST = 0.25
# An interrupted contender waits longer, if its deadline allows: a server that hangs must not keep it; seconds.
INTERRUPTED_LEAVE_TIMEOUT = 0.3


class Contender:
    """One node of this process, from before its creation until its deletion is confirmed."""

    def __init__(self, session: ZooKeeperSession, claim: Claim, data: bytes, acl: Any) -> None:
        self.session = session
        self.parent = f"{session.path}/{claim.key.path}"
        self.path: str | None = None
        self.czxid = 0
        self.since = 0.0
        # whether another client has deleted the node of a held lock
        self.broken = False
        self.watched = False
        self._token = new_token()
        self._prefix = f"{self.parent}/{self._token}-{mode_of(claim)}-"
        self._limit = claim.limit
        self._data, self._acl = data, acl
        # whether there may be a node whose creation was not answered
        self._creating = False
        self._exclusive = not (claim.shared or claim.limit)
        # whether the release is to be marked for the next in line, which costs more than a mere deletion: there is one
        # more often than not where this contender had to wait
        self.marks = False

    async def acquire(self, until: float, answer_by: float) -> bool:
        """Wait for the turn until the monotonic time ``until``. Returns False if it did not come.

        The first answer has time until ``answer_by``. Raises BackendUnavailable. A node that is not granted is deleted
        in every case.
        """
        waits = until > clock.now()
        try:
            nodes = await self._join(answer_by)
            while not await self._in_turn(nodes, until):
                now = clock.now()
                if now >= until:
                    if waits and self.session.in_doubt():
                        raise NoAnswer(self.session.failure(None))
                    # contenders that time out together each take the time that their deadline allows, and no more
                    await self.leave(until + LEAVE_TIMEOUT if waits else max(answer_by, now + LEAVE_TIMEOUT))
                    return False
                with contextlib.suppress(NoAnswer):  # the time is over, and the last answer said that it is busy
                    nodes = await self._join(max(until, now + LEAVE_TIMEOUT))
            if not self.session.lives():  # the answer was read late, and others may hold the lock by now
                raise SessionEnded(self.session.failure(None))
            self.since = clock.now()
            self.session.held.add(self)
        except (GeneratorExit, BackendUnavailable):
            self.abandon()
            raise
        except BaseException:
            now = clock.now()
            deadline = max(until if waits else answer_by, now + LEAVE_TIMEOUT)
            await clean_up(self.leave(min(now + INTERRUPTED_LEAVE_TIMEOUT, deadline)))
            raise
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
            if self._limit and place + 1 < len(nodes):
                self._announce_grant()
            return True
        if clock.now() < until:
            self.marks = self._exclusive
            with contextlib.suppress(ConnectionBroken):  # the queue is read again on the next connection
                released = await self._changed(behind, until)
                return released and clock.now() - listed_at < TRUST and not self.session.in_doubt()
        return False

    async def _changed(self, behind: str | None, until: float) -> bool:
        """Wait for a change of the node ``behind`` which this one stands, or of the whole queue if it is None.

        Returns True if it was the release of an exclusive lock."""
        path = self.parent if behind is None else f"{self.parent}/{behind}"
        session, watch, parker = self.session, self.session.watch(path), Parker()
        watch.add(parker)
        session.asking.add(parker)
        there = False
        try:
            if behind is None:
                (names,) = await session.ask(until, lambda kazoo: kazoo.get_children_async(path, watch=watch))
                there, nodes = names is not None, queue(names or ())
                place = place_of(nodes, self._token)
                waits = place is not None and turn(nodes, place) == (False, None)
            else:
                # not exists(), which leaves a watch behind for a node that will never exist again
                requests = [lambda kazoo: kazoo.get_async(path, watch=watch)]
                if is_exclusive(behind):  # its release may be marked
                    requests.append(lambda kazoo: kazoo.get_children_async(path, watch=watch))
                answers = await session.ask(until, *requests)
                there = None not in answers
                waits = there and not (self._limit and answers[0][1].version)  # else it was granted already
            if waits:
                await parker.park(until - clock.now())
                return behind is not None and is_exclusive(behind) and await watch.marked(until)
        except NoAnswer:
            pass  # the caller's time is over
        finally:
            watch.remove(parker)
            session.asking.remove(parker)
            if not there:  # as far as is known, kazoo has no watch; if it has one, that is called all the same
                watch.forget()
        return False

    # creation

    async def _join(self, until: float) -> list[LockNode]:
        """Return the queue with this contender's node in it, which is created if it does not exist."""
        while True:
            try:
                if self.path is None:
                    names = await self._create(until)
                else:
                    (names,) = await self.session.ask(until, self._children)
                    if names is None:
                        self.path = None  # another client has deleted the whole queue
            except ConnectionBroken:
                # without a second node while the first one may be there: this contender would wait behind itself
                if self._creating and not await self.leave(until):
                    raise NoAnswer(self.session.failure(None)) from None
            else:
                if names is not None:
                    return queue(names)

    def _children(self, kazoo: Any) -> Any:
        return kazoo.get_children_async(self.parent)

    async def _create(self, until: float) -> list[str] | None:
        session = self.session
        created, names = await session.answered(until, self._send_creation, self._children)
        node = session.value(created)
        if node is None:
            self._creating = False
            await self._create_parents(until)
            return None
        self.czxid, self.path = node[1].czxid, str(session.kazoo.unchroot(node[0]))
        self._creating = False
        found: list[str] | None = session.value(names)  # None: deleted between the two
        return found

    def _send_creation(self, kazoo: Any) -> Any:
        self._creating = True
        return self.session.create_contender(self._prefix, self._data, self._acl)

    async def _create_parents(self, until: float) -> None:
        session = self.session
        (made,) = await session.ask(until, lambda kazoo: session.create_container(self.parent, self._acl))
        if made is None:  # it exists by now, or the nodes above it do not
            (made,) = await session.answered(until, lambda kazoo: kazoo.ensure_path_async(session.path, self._acl))
            if made.exception is not None:
                raise BackendUnavailable(session.failure(made.exception)) from made.exception

    def _announce_grant(self) -> None:
        """Change the node, so that the next waiter, which watches it, watches the holders instead."""
        path = self.path
        self.session.send_until_answered(lambda kazoo: kazoo.set_async(path, self._data))

    # deletion

    async def leave(self, until: float) -> bool:
        """Delete the node. Returns True if the server has confirmed it by the monotonic time ``until``."""
        parker = Parker()
        self.abandon(parker.wake)
        return bool(await parker.park(until - clock.now()))

    def abandon(self, gone: Callable[[], object] = bool) -> None:
        """Delete the node without waiting, even if its creation was not answered yet. Calls ``gone`` once it
        certainly does not exist."""
        self.session.held.discard(self)
        if self.path is not None:
            self._delete(self.path, gone)
        elif self._creating:
            self.session.send_until_answered(lambda kazoo: kazoo.sync_async(self.parent))
            self.session.send_until_answered(self._children, lambda result: self._delete_found(result, gone))
        else:
            gone()
        self.path, self._creating = None, False  # last, because an interrupted call is repeated

    def _delete(self, path: str, gone: Callable[[], object]) -> None:
        self.session.send_until_answered(lambda kazoo: kazoo.delete_async(path), lambda result: gone())

    def _delete_found(self, children: Any, gone: Callable[[], object]) -> None:
        names = children.value if children is not None and children.exception is None else ()
        name = next((name for name in names if name.startswith(self._token)), None)
        if name is None:
            gone()
        else:
            self._delete(f"{self.parent}/{name}", gone)

    # while it is held

    def watch(self) -> None:
        """Have the server report a deletion of the node by another client."""
        path = self.path
        if path is not None:
            self.watched = True
            self.session.send(lambda kazoo: kazoo.get_async(path, watch=self._node_changed)).rawlink(self._watch_set)

    def _watch_set(self, answer: Any) -> None:
        if isinstance(answer.exception, NoNodeError):
            self._deleted()
        elif answer.exception is not None:
            self.watched = False

    def _node_changed(self, event: Any) -> None:
        if event.type == EventType.DELETED:
            self._deleted()
        else:
            self.watched = False

    def _deleted(self) -> None:
        if self in self.session.held:
            self.session.held.discard(self)
            self.broken = True
            self.session.wake_at(clock.now())
