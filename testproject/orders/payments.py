"""The payment provider: somebody else's server, slow, and each call of it costs the customer money."""

from __future__ import annotations

import time

from django.conf import settings


def pay(key: str) -> str:
    """The reference of a payment. As with a real provider, a call that is repeated with its key is the same payment."""
    time.sleep(settings.PAYMENT_SECONDS)
    return f"pay-{key[:12]}"
