"""PostgreSQL: advisory locks, in the caller's transaction or on a session of the process.

``AdvisoryBackend`` is imported when it is first asked for: only then is its driver needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import AdvisoryBackend

__all__ = ["AdvisoryBackend"]


def __getattr__(name: str) -> Any:
    if name == "AdvisoryBackend":
        from .backend import AdvisoryBackend

        return AdvisoryBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
