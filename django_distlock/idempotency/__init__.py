"""Requests and forms that arrive twice act once: see docs/idempotency/."""

from __future__ import annotations

from .admin_forms import IdempotentAdmin
from .decorator import idempotency_exempt, idempotent
from .handle import Idempotency, IdempotentRequest, Phase
from .middleware import IdempotencyMiddleware
from .storage import forget_user

__all__ = [
    "Idempotency",
    "IdempotencyMiddleware",
    "IdempotentAdmin",
    "IdempotentRequest",
    "Phase",
    "forget_user",
    "idempotency_exempt",
    "idempotent",
]
