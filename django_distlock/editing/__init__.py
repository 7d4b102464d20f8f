"""Edit locks: who is editing this object? See docs/editing/."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .admin.options import EditLockAdmin
    from .code import edit_lock
    from .drf import EditLockViewSetMixin
    from .http.refusals import add_conflict
    from .listing import editors
    from .records import EditConflict, Editor
    from .views import EditLockMixin, edit_locked

# Each name with its module, imported when it is first used: models need their apps, and one mixin the REST framework.
_MODULES = {
    "EditConflict": "records",
    "EditLockAdmin": "admin.options",
    "EditLockMixin": "views",
    "EditLockViewSetMixin": "drf",
    "Editor": "records",
    "add_conflict": "http.refusals",
    "edit_lock": "code",
    "edit_locked": "views",
    "editors": "listing",
}
__all__ = [
    "EditConflict",
    "EditLockAdmin",
    "EditLockMixin",
    "EditLockViewSetMixin",
    "Editor",
    "add_conflict",
    "edit_lock",
    "edit_locked",
    "editors",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
