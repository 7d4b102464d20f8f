"""PostgreSQL: advisory locks, in the caller's transaction or on a session of the process."""

from .backend import AdvisoryBackend

__all__ = ["AdvisoryBackend"]
