"""What Django's admin finds: the page of held locks, and the list of idempotency keys."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from django_distlock.operations.admin.admin import HeldLockAdmin

__all__ = ["HeldLockAdmin"]

# A folder of its own, which may be deleted.
if find_spec("django_distlock.idempotency") is not None:
    import_module("django_distlock.idempotency.admin")
