"""Redlock: one lock on several independent Redis nodes, held by a majority."""

from .backend import RedlockBackend

__all__ = ["RedlockBackend"]
