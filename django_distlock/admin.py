"""What the admin shows."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

# a feature beside the core: the rest does not need it
if find_spec("django_distlock.idempotency") is not None:
    import_module("django_distlock.idempotency.admin")
