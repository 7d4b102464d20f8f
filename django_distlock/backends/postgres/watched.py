"""The caller's own connection, watched while it is asked for a lock."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from psycopg import pq

from django_distlock.concurrency import sockets
from django_distlock.concurrency.clock import monotonic
from django_distlock.exceptions import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Collection

    from django.db.backends.base.base import BaseDatabaseWrapper

# Between two looks at a server that may hang; seconds. So short that a row of three that one bad look broke off is made
# up for within the grace of the deadline.
NEXT_LOOK = 0.004
# The server gets this long after the first look in any case.
LEAST_WATCH = 0.02
# A look that came later than this, or got the interpreter back later than that, says nothing of the server.
LATE, SLOW = 0.01, 0.0025
# Who has just answered that the wait is over has this long for the way back to the savepoint: it lives, and a moment
# without a processor must not cost the caller his transaction. Seconds.
RETREAT = 0.25
# So long before a look other threads may take the interpreter, if any of them wants it. Seconds.
PROBE = 0.0005
# So many looks that say nothing, and the connection is ended all the same.
MOST_ROUGH = 100


class Watched:
    """A caller's connection while it is asked for a lock.

    It is the caller's: it is ended only if the server has not answered, never because this process was slow to read or
    to handle an answer. So the keepalive thread looks three times in a row; a look that came late, or did not get the
    interpreter back at once, starts that anew, because then the caller does not get it either: he may have read the
    answer from the socket, and wait for the interpreter to see what it says.
    """

    __slots__ = ("conn", "database", "ended", "fd", "misses", "ripe", "rough", "until")

    def __init__(self, connection: BaseDatabaseWrapper, until: float) -> None:
        self.conn: Any = connection.connection.pgconn
        self.fd: int = self.conn.socket
        self.until = until
        self.ripe = until + LEAST_WATCH
        self.misses = self.rough = 0
        self.database: str = connection.alias
        self.ended = False

    def look(self, now: float) -> float:
        """End the connection if the server hangs; the monotonic time of the next look."""
        late = now - self.until
        if late < 0:
            return self.until
        waits = self.conn.transaction_status == pq.TransactionStatus.ACTIVE and not sockets.readable(self.fd, 0)
        if not waits:
            self.misses = self.rough = 0
        elif late < LATE and monotonic() - now < SLOW:
            self.misses += 1
        else:
            self.misses, self.rough = 0, self.rough + 1
        if (self.misses >= 3 and now >= self.ripe) or self.rough >= MOST_ROUGH:
            self.ended = True
            sockets.shut(self.fd)
        self.until = now + max(NEXT_LOOK, late)
        return self.until

    def verdict(self, alias: str) -> BackendUnavailable | None:
        """What the caller is told if the connection was ended here."""
        if not self.ended:
            return None
        return BackendUnavailable(
            f"The server of alias {alias!r} did not answer in time: the connection of this thread to database "
            f"{self.database!r} was ended, and its transaction rolled back."
        )


def look_after(watching: Collection[Watched], now: float) -> float:
    """Look at each whose time has come; the monotonic time of the next look."""
    if any(watched.until <= now for watched in watching):
        time.sleep(PROBE)  # once for all of them
    return min((watched.look(now) for watched in watching), default=math.inf)
