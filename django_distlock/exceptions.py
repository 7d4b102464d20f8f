"""Every error this library raises.

::

    Exception
    └── DistlockError
        ├── LockNotAcquired            busy, and the call does not wait
        │   └── LockTimeout            busy until the deadline
        ├── LockLost                   held, and lost before the release
        ├── LockNotHeld                released, or never acquired here
        ├── DeadlockDetected           waiting would never have ended
        ├── UnsupportedOperation       not possible with this backend
        └── BackendUnavailable         the server does not answer; the driver's error is ``__cause__``

Busy, lost and unreachable are different classes because callers react differently: they skip, abort or alert. The
docstring of a class is its default message.
"""

from __future__ import annotations

from django_distlock.concurrency.text import one_line


class DistlockError(Exception):
    """A lock operation failed."""

    def __init__(self, message: str | None = None) -> None:
        # the message of a driver may have several lines and control characters
        super().__init__(one_line(message if message is not None else (type(self).__doc__ or "").strip()))


class LockNotAcquired(DistlockError):
    """The lock is held by another caller."""


class LockTimeout(LockNotAcquired):
    """The lock was still held by another caller at the end of the timeout."""


class LockLost(DistlockError):
    """The lock was lost before it was released."""


class LockNotHeld(DistlockError):
    """The lock is not held here."""


class DeadlockDetected(DistlockError):
    """Waiting for the lock would have been a deadlock; everything that this call had acquired was released."""


class UnsupportedOperation(DistlockError):
    """The backend of this alias does not support this operation."""


class BackendUnavailable(DistlockError):
    """The lock backend did not answer."""
