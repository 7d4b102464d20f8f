"""The values of browser locks: a lease, the answer to an acquire that is refused, and a lease that is lost."""

from __future__ import annotations

from django_distlock.leases.records import (
    NO_QUOTA,
    Full,
    Head,
    LeaseLost,
    LostReason,
    Quota,
    Waiting,
    check_name,
    digest_of,
    holder_of,
)
from django_distlock.leases.records import Row as BrowserLease

__all__ = [
    "NO_QUOTA",
    "BrowserLease",
    "Full",
    "Head",
    "LeaseLost",
    "LostReason",
    "Quota",
    "Waiting",
    "check_name",
    "digest_of",
    "holder_of",
]
