"""One contender's way through the queue of one lock: its node, and the node that it waits for.

Source: the recipes of ZooKeeper's manual (https://zookeeper.apache.org/doc/r3.8.0/recipes.html), with the node found
again by its token when the answer to its creation was lost.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NodeExistsError, NoNodeError, ZookeeperError
from kazoo.protocol.states import EventType

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step
from django_distlock.concurrency.parking import Parker
from django_distlock.concurrency.tokens import new_token

from .client import NOT_ANSWERED
from .nodes import Node, mode_of, place_of, queue, turn
from .session import Dropped, Late, Over, Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock.records import Claim

# A contender whose time is over waits so long for its node to be deleted; seconds. One that was interrupted waits
# longer, if it has the time: a server that hangs must not keep it.
FAREWELL, INTERRUPTED = 0.02, 0.3


class Place:
    """One node of ours, from before it is created until it is surely deleted."""

    def __init__(self, session: Session, claim: Claim, data: bytes, acl: Any) -> None:
        self.session = session
        self.parent = f"{session.path}/{claim.key.path}"
        self.path: str | None = None
        self.czxid = 0
        self.since = 0.0
        # is it held by nobody who would know, because it was deleted under us?
        self.broken = False
        self.watched = False
        self._token = new_token()
        self._prefix = f"{self.parent}/{self._token}-{mode_of(claim)}-"
        self._limit = claim.limit
        self._data, self._acl = data, acl
        # kazoo's result of a creation that was not answered yet; whoever is interrupted may not have got that far
        self._created: Any = None
        self._creating = False

    def take(self, until: float, answer_by: float) -> Flow[bool]:
        """Wait for the turn until the monotonic time ``until``; False if it did not come.

        The first answer has time until ``answer_by``. Raises Over, Late, and what ZooKeeper refuses. Whatever happens,
        a node that is not granted is deleted.
        """
        waits = until > monotonic()
        try:
            nodes = yield from self._join(answer_by)
            while not (yield from self._in_turn(nodes, until)):
                now = monotonic()
                if now >= until:
                    if waits and self.session.in_doubt():
                        raise Late
                    # of a crowd whose time is over at once each one has what the deadline allows, and no more
                    yield from self.leave(until + FAREWELL if waits else max(answer_by, now + FAREWELL))
                    return False
                with contextlib.suppress(Late):  # it was busy when we last heard, and our time is over
                    nodes = yield from self._join(max(until, now + FAREWELL))
            self.since = monotonic()
            self.session.held.add(self)
        except GeneratorExit:
            self.abandon()
            raise
        except (Over, Late, ZookeeperError):
            self.abandon()
            raise
        except BaseException:
            now = monotonic()
            yield from self.leave(min(now + INTERRUPTED, max(until if waits else answer_by, now + FAREWELL)))
            raise
        return True

    def _in_turn(self, nodes: list[Node], until: float) -> Flow[bool]:
        """Is it our turn? If not, wait until the node before us has changed."""
        place = place_of(nodes, self._token)
        if place is None:  # somebody deleted our node
            self.path = None
            return False
        granted, behind = turn(nodes, place)
        if granted:
            if self._limit and place + 1 < len(nodes):
                self._say_in()
            return True
        if monotonic() < until:
            with contextlib.suppress(Dropped):  # we look again when there is a connection
                yield from self._changed(behind, until)
        return False

    def _changed(self, behind: str | None, until: float) -> Flow[None]:
        path = self.parent if behind is None else f"{self.parent}/{behind}"
        session, watch, parker = self.session, self.session.watch(path), Parker()
        watch.add(parker)
        try:
            if behind is None:
                (names,) = yield from session.ask(until, lambda kazoo: kazoo.get_children_async(path, watch=watch))
                if isinstance(names, NoNodeError):  # everything was deleted under us
                    watch.forget()
                    return
                if isinstance(names, ZookeeperError):
                    raise names
                nodes = queue(names)
                place = place_of(nodes, self._token)
                if place is None or turn(nodes, place) != (False, None):
                    return
            else:
                # not exists(), which leaves a watch behind for a node that will never come again
                (answer,) = yield from session.ask(until, lambda kazoo: kazoo.get_async(path, watch=watch))
                if isinstance(answer, NoNodeError):
                    watch.forget()
                    return
                if isinstance(answer, ZookeeperError):
                    raise answer
                if self._limit and answer[1].version:  # it has gone in already
                    return
            yield Step(parker.park, parker.apark, (until - monotonic(),))
        except Late:
            pass  # the caller's time is over
        finally:
            watch.remove(parker)

    # the node

    def _join(self, until: float) -> Flow[list[Node]]:
        """See the queue with our node in it, which is created if it is not there."""
        while True:
            try:
                if self.path is not None:
                    (names,) = yield from self.session.ask(until, self._children)
                elif self._created is not None:
                    names = yield from self._search(until)
                else:
                    names = yield from self._create(until)
            except Dropped:
                continue
            if isinstance(names, ZookeeperError):
                if not isinstance(names, NoNodeError):
                    raise names
                if self.path is not None:
                    self.path = None  # everything was deleted under us
            elif names is not None:
                return queue(names)

    def _children(self, kazoo: Any) -> Any:
        return kazoo.get_children_async(self.parent)

    def _create(self, until: float) -> Flow[list[str] | None]:
        created, names = yield from self.session.ask(until, self._new, self._children)
        self._created = None
        if isinstance(created, NoNodeError):
            yield from self._create_parents(until)
            return None
        if isinstance(created, ZookeeperError):
            raise created
        self.path, self.czxid = self._seen_from_here(created[0]), created[1].czxid
        if isinstance(names, NoNodeError):  # deleted between the two
            return None
        if isinstance(names, ZookeeperError):
            raise names
        return list(names)

    def _seen_from_here(self, path: str) -> str:
        """Without the chroot, if ``hosts`` names one."""
        return str(self.session.client.kazoo.unchroot(path))

    def _new(self, kazoo: Any) -> Any:
        self._creating = True
        self._created = self.session.client.create_contender(self._prefix, self._data, self._acl)
        return self._created

    def _create_parents(self, until: float) -> Flow[None]:
        parts = self.session.path.split("/")
        above = ["/".join(parts[:end]) for end in range(2, len(parts) + 1)]
        *refusals, refusal = yield from self.session.ask(
            until,
            *(lambda kazoo, path=path: kazoo.create_async(path, acl=self._acl) for path in above),
            lambda kazoo: self.session.client.create_container(self.parent, self._acl),
        )
        if isinstance(refusal, NoNodeError):  # what is above is not there, for a reason of its own
            refusal = next((each for each in refusals if not isinstance(each, (str, NodeExistsError))), refusal)
        if isinstance(refusal, ZookeeperError) and not isinstance(refusal, NodeExistsError):
            raise refusal

    def _search(self, until: float) -> Flow[list[str] | None]:
        """The connection broke before the answer: was our node created?"""
        _, names = yield from self.session.ask(until, lambda kazoo: kazoo.sync_async(self.parent), self._children)
        if isinstance(names, NoNodeError) or (isinstance(names, list) and self._mine(names) is None):
            self._created = None
            return None
        if isinstance(names, ZookeeperError):
            raise names
        path = f"{self.parent}/{self._mine(names)}"
        (stat,) = yield from self.session.ask(until, lambda kazoo: kazoo.exists_async(path))
        self._created = None
        if stat is None:
            return None
        self.path, self.czxid = path, stat.czxid
        return list(names)

    def _mine(self, names: list[str]) -> str | None:
        return next((name for name in names if name.startswith(self._token)), None)

    def _say_in(self) -> None:
        """The next one follows us and not those who hold: let it look at them."""
        path = self.path
        self.session.insist(lambda kazoo: kazoo.set_async(path, self._data))

    # its end

    def leave(self, until: float) -> Flow[None]:
        """Delete the node; what is not confirmed by the monotonic time ``until`` is done behind the caller's back."""
        parker = Parker()
        self.abandon(parker.wake)
        if self.session.lives():
            yield Step(parker.park, parker.apark, (until - monotonic(),))

    def abandon(self, gone: Callable[[], object] = bool) -> None:
        """Have the node deleted without waiting for it, also one of which we do not know whether it is there; ``gone``
        is called once it surely is not."""
        path, created, creating = self.path, self._created, self._creating
        self.path, self._created, self._creating = None, None, False
        self.session.held.discard(self)
        if path is not None:
            self._delete(path, gone)
        elif created is not None:
            created.rawlink(lambda created: self._created_late(created, gone))
        elif creating:
            self._search_and_delete(gone)
        else:
            gone()

    def _delete(self, path: str, gone: Callable[[], object]) -> None:
        self.session.insist(lambda kazoo: kazoo.delete_async(path), lambda result: gone())

    def _created_late(self, created: Any, gone: Callable[[], object]) -> None:
        if created.exception is None:
            self._delete(self._seen_from_here(created.value[0]), gone)
        elif isinstance(created.exception, NOT_ANSWERED):
            self._search_and_delete(gone)
        else:
            gone()

    def _search_and_delete(self, gone: Callable[[], object]) -> None:
        self.session.insist(lambda kazoo: kazoo.sync_async(self.parent))
        self.session.insist(self._children, lambda result: self._delete_found(result, gone))

    def _delete_found(self, children: Any, gone: Callable[[], object]) -> None:
        name = self._mine(children.value) if children.exception is None else None
        if name is None:
            gone()
        else:
            self._delete(f"{self.parent}/{name}", gone)

    # while it is held

    def watch(self) -> None:
        """Have kazoo say if the node is deleted under us."""
        path = self.path
        if path is not None:
            self.watched = True
            self.session.send(lambda kazoo: kazoo.get_async(path, watch=self._stirred)).rawlink(self._looked_at)

    def _looked_at(self, answer: Any) -> None:
        if isinstance(answer.exception, NoNodeError):
            self._gone()
        elif answer.exception is not None:
            self.watched = False

    def _stirred(self, event: Any) -> None:
        if event.type == EventType.DELETED:
            self._gone()
        else:
            self.watched = False

    def _gone(self) -> None:
        if self in self.session.held:
            self.session.held.discard(self)
            self.broken = True
            self.session.wake_at(monotonic())
