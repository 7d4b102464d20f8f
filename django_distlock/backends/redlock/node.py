"""One node: a Redis server to which connections are opened in the background, because the others may be enough."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from django_distlock.backends.redis.connection import ConnectionFailed
from django_distlock.backends.redis.server import MAX_CONNECTIONS, Server
from django_distlock.backends.redis.target import clustered
from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import SILENCE
from django_distlock.concurrency.flow import in_task, run
from django_distlock.concurrency.outcome import Outcome
from django_distlock.concurrency.parking import FairLock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_distlock.backends.redis.connection import Connection

# A node that could not be reached is tried again after this time; seconds.
RETRY = 1.0


class ClusterNode(ConnectionFailed):
    """The server is a node of a Redis Cluster: it has the names of its slots, and refuses all others."""

    def __init__(self) -> None:
        super().__init__(
            "A node of a Redis Cluster has only a part of the names, and refuses the others. Use a server without "
            "cluster mode: several independent ones for Redlock, or the cluster for the backend of Redis."
        )


class Node(Server):
    """``down``: the last attempt to connect failed, by ``error``."""

    def _start(self) -> None:
        super()._start()
        self.down = False
        self.error = ConnectionFailed("There was no attempt to connect.")
        self._attempt: Outcome[None] | None = None
        self._connecting = False  # in a thread, since then (monotonic)
        self.connecting_since = 0.0
        self._retry_at = 0.0

    def _connect(self, timeout: float) -> Connection:
        connection = super()._connect(timeout)
        if clustered(connection._driver):
            connection.close()
            raise ClusterNode
        self.down = False
        return connection

    def again(self, connection: Connection | None) -> Connection | None:
        """This connection if it is idle, so that the next request comes behind the last one; else :meth:`take`."""
        if connection is not None:
            with contextlib.suppress(ValueError):
                self._idle.remove(connection)
                return connection
        return self.take()

    def open(self) -> Outcome[None]:
        """The attempt to open a connection that is under way in the background, one at a time. It is done, too, when
        one is given back. Then :meth:`take` has it, unless another caller was faster."""
        attempt = self._attempt
        if attempt is None or attempt.done():
            self._attempt = attempt = Outcome()
        if not self._connecting:
            self._connecting, self.connecting_since = True, clock.now()
            try:
                threading.Thread(target=self._open, name=f"{self.name}-open", daemon=True).start()
            except RuntimeError:  # at the end of the interpreter; an event loop would stand still
                self._open(waits=not in_task())
            except BaseException:  # of a signal: nobody waits for an attempt that was perhaps not begun
                self._connecting, self._attempt = False, None
                raise
        return attempt

    def give(self, connection: Connection) -> None:
        super().give(connection)
        self._end_attempt()

    def _end_attempt(self, error: ConnectionFailed | None = None) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        if error is None:
            attempt.set_result(None)
        else:
            attempt.set_exception(error)

    def retry(self) -> None:
        """:meth:`open` if it is time to try a node again that is down."""
        if clock.now() >= self._retry_at:
            self.open()

    def _open(self, waits: bool = True) -> None:
        until, failed = clock.now() + SILENCE, None
        try:
            if not waits:
                raise ConnectionFailed("There is no thread to connect in.")
            full = len(self._all) >= MAX_CONNECTIONS  # then the next one that is given back
            connection = run(self.connect(until) if full else self._connected(until))
        except ConnectionFailed as error:
            # others are asked for a while, if they are enough
            self.error = failed = error
            self._retry_at, self.down = clock.now() + RETRY, True
        else:
            self.down = False
            self.give(connection)
        finally:
            self._connecting = False
        self._end_attempt(failed)


class Nodes(list[Node]):
    """All nodes of an alias.

    ``line``: of the rounds that have not enough connections yet. One at a time takes them: several would each hold what
    the others wait for, until there are as many as rounds. ``in_vain_at``: when the last one gave up, and with it those
    that waited behind it.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__(nodes)
        self.line = FairLock()
        self.in_vain_at = 0.0

    def after_fork(self) -> None:
        """In the child: the connections are the parent's."""
        self.line = FairLock()
        for node in self:
            node.after_fork()
