"""Threads that connect, and that nobody waits for any more.

No driver keeps a deadline while it looks up a name, so each attempt to connect has a thread of its own, which is left
to itself at the deadline of who wanted the connection. Where a name server hangs, each attempt would leave one behind,
for half a minute or longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

# So many of them, and who comes next is told at once that the server cannot be reached.
MOST = 32


class Stragglers:
    """Of one server. Without a mutex, which a fork could leave locked: one more than told does no harm."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def add(self, thread: threading.Thread) -> None:
        self._threads.append(thread)

    def refuse(self) -> str | None:
        """Why nobody should try now, if there are too many."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) < MOST:
            return None
        return f"{len(self._threads)} attempts to connect have not come to an end and are still under way."
