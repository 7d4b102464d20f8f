"""Locks on data: tables, rows, and fenced writes.

A name is imported when it is first used: an abstract model cannot be defined before the apps are loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fencing.model import FencedModel
    from .fencing.querysets import FencedQuerySet
    from .managers import LockingManager, LockingQuerySet
    from .tables.modes import TableLockMode

__all__ = [
    "FencedModel",
    "FencedQuerySet",
    "LockingManager",
    "LockingQuerySet",
    "TableLockMode",
]

_MODULES = {
    "FencedModel": "fencing.model",
    "FencedQuerySet": "fencing.querysets",
    "LockingManager": "managers",
    "LockingQuerySet": "managers",
    "TableLockMode": "tables.modes",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
