"""Browser locks: one lock across tabs, browsers and devices. See docs/browser/."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from django_distlock.leases.records import Row as BrowserLease

if TYPE_CHECKING:
    from .grants import lock_grant
    from .guard import requires_lock

# Each name with its module, imported when it is first used: models need their apps.
_MODULES = {"lock_grant": "grants", "requires_lock": "guard"}
__all__ = ["BrowserLease", "lock_grant", "requires_lock"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
