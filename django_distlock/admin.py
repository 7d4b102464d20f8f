"""The pages that Django's admin finds here: held locks and idempotency keys."""

from __future__ import annotations

from importlib.util import find_spec

from django_distlock.operations.admin.admin import HeldLockAdmin

__all__ = ["HeldLockAdmin"]

if find_spec("django_distlock.editing") is not None:  # a folder that may be deleted
    from django_distlock.editing.admin.held import EditLocksSection

    HeldLockAdmin.sections.append(EditLocksSection())
if find_spec("django_distlock.browser") is not None:  # a folder that may be deleted
    from django_distlock.browser.held import BrowserLocksSection

    HeldLockAdmin.sections.append(BrowserLocksSection())
if find_spec("django_distlock.idempotency") is not None:  # a folder that may be deleted
    from django_distlock.idempotency import admin as idempotency  # noqa: F401 - registers its page
