"""Locks on data: tables, rows, and fenced writes.

A name is imported when it is first used: an abstract model cannot be defined before the apps are loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fencing.model import FencedModel
    from .fencing.operations import EnforceFence, RelaxFence
    from .fencing.querysets import FencedQuerySet
    from .managers import LockingManager, LockingQuerySet
    from .tables.modes import TableLockMode

__all__ = [
    "EnforceFence",
    "FencedModel",
    "FencedQuerySet",
    "LockingManager",
    "LockingQuerySet",
    "RelaxFence",
    "TableLockMode",
]

_MODULES = {
    "EnforceFence": "fencing.operations",
    "FencedModel": "fencing.model",
    "FencedQuerySet": "fencing.querysets",
    "LockingManager": "managers",
    "LockingQuerySet": "managers",
    "RelaxFence": "fencing.operations",
    "TableLockMode": "tables.modes",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
