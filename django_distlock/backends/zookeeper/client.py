"""kazoo's client, in whose calls an interrupt is not lost."""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionClosedError, SessionExpiredError
from kazoo.protocol.states import KeeperState

# Why a request is not taken, by the state of the client.
REFUSED = {
    KeeperState.AUTH_FAILED: AuthFailedError,
    KeeperState.CLOSED: ConnectionClosedError,
    KeeperState.EXPIRED_SESSION: SessionExpiredError,
}


class Client(KazooClient):  # type: ignore[misc]
    """kazoo takes whatever is raised while a caller wakes its thread, Ctrl-C included, for a closed connection."""

    def _call(self, request: Any, result: Any) -> bool | None:
        """Queue a request, in the place of kazoo's own method. False: the client takes none any more."""
        if (failure := REFUSED.get(self._state)) is not None:
            result.set_exception(failure("The client takes no requests any more."))
            return False
        self._queue.append((request, result))
        try:
            self._connection._write_sock.send(b"\0")
        except (AttributeError, OSError, ValueError):  # the connection is closed, or just being closed
            result.set_exception(ConnectionClosedError("Connection has been closed"))
        return None
