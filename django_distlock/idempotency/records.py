"""The values that a request, the decisions and a storage exchange. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CLAIMED, COMPLETED, FAILED, UNKNOWN = "claimed", "completed", "failed", "unknown"
STATES = (CLAIMED, COMPLETED, FAILED, UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """The stored part of a response: the listed headers only, and never a cookie.

    ``body`` None is a tombstone: the request was answered, and the body is not kept.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    # level, text, extra tags, whether the text is safe as HTML
    messages: tuple[tuple[int, str, str, bool], ...] = ()

    @property
    def location(self) -> str | None:
        return next((value for name, value in self.headers if name.lower() == "location"), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a storage has for one key of one principal on one route.

    ``expired``: the claim, or the lifetime of the answer, had ended when the record was read, by the clock of the
    storage. ``answer`` is None unless the state is "completed". ``phases`` maps the names of finished phases to their
    results.
    """

    scope: str
    state: str
    owner: str
    fingerprint: str
    expired: bool = False
    answer: StoredResponse | None = None
    phases: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyClaim:
    """The right to run ``scope``, as it is asked of a storage.

    The claim lasts for ``claim_ttl`` seconds unless it is renewed, and the answer for ``ttl`` seconds. ``owner`` is the
    token of this attempt. ``principal``, ``method`` and ``route`` are for people who read the list of keys. ``quota``
    is how many unexpired keys ``principal`` may have; None for any number.
    """

    scope: str
    owner: str
    fingerprint: str
    claim_ttl: float
    ttl: float
    principal: str = ""
    method: str = ""
    route: str = ""
    quota: int | None = None
