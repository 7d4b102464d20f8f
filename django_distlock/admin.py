"""The pages that Django's admin finds here: held locks and idempotency keys."""

from __future__ import annotations

from importlib.util import find_spec

from django_distlock.operations.admin.admin import HeldLockAdmin
from django_distlock.operations.admin.sections import features

__all__ = ["HeldLockAdmin"]

if find_spec("django_distlock.editing") is not None:  # a folder that may be deleted
    from django_distlock.editing.listing import edit_leases

    features.append(edit_leases)
if find_spec("django_distlock.browser") is not None:  # a folder that may be deleted
    from django_distlock.browser.listing import browser_leases

    features.append(browser_leases)
if find_spec("django_distlock.idempotency") is not None:  # a folder that may be deleted
    from django_distlock.idempotency import admin as idempotency  # noqa: F401 - registers its page
