"""The caller's own connection, watched while it is asked for a lock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from psycopg import pq

from . import sockets

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

# Between two looks at a server that may hang; seconds.
NEXT_LOOK = 0.01


class Watched:
    """A caller's connection while it is asked for a lock.

    It is the caller's: it is ended only if the server has not answered, never because this process was slow to read or
    to handle an answer. So the keepalive thread looks three times in a row; a look that came late, or did not get the
    interpreter back at once, starts that anew, because then the caller does not get it either.
    """

    __slots__ = ("conn", "fd", "misses", "rough", "until")

    def __init__(self, connection: BaseDatabaseWrapper, until: float) -> None:
        self.conn: Any = connection.connection.pgconn
        self.fd: int = self.conn.socket
        self.until = until
        self.misses = self.rough = 0

    def look(self, now: float) -> float:
        """End the connection if the server hangs; the monotonic time of the next look."""
        late = now - self.until
        if late < 0:
            return self.until
        waits = self.conn.transaction_status == pq.TransactionStatus.ACTIVE and not sockets.readable(self.fd, 0)
        if not waits:
            self.misses = self.rough = 0
        elif late < NEXT_LOOK and time.monotonic() - now < NEXT_LOOK / 4:
            self.misses += 1
        else:
            self.misses, self.rough = 0, self.rough + 1
        if self.misses >= 3 or self.rough >= 50:
            sockets.shut(self.fd)
        self.until = now + max(NEXT_LOOK, late)
        return self.until
