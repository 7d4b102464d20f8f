"""R8: a shared lock that its transaction keeps is in the way of an exclusive one, and the error says so."""

from __future__ import annotations

import pytest
from django.db import transaction

from django_distlock import DeadlockDetected, advisory_lock

pytestmark = pytest.mark.usefixtures("databases")


def test_r8_shared_and_then_exclusive_in_one_transaction(name: str) -> None:
    with transaction.atomic():
        with advisory_lock(name, using="memory", shared=True):
            pass
        with pytest.raises(DeadlockDetected, match="keeps it until that ends"):
            advisory_lock(name, using="memory").acquire()
        with advisory_lock(name, using="memory", shared=True):
            pass
    with advisory_lock(name, using="memory"):
        pass
