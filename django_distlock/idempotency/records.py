"""The values that cross between a request, the decisions and a storage. Standard library only."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

CLAIMED, COMPLETED, FAILED, UNKNOWN = "claimed", "completed", "failed", "unknown"
STATES = (CLAIMED, COMPLETED, FAILED, UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is kept of a response: never a cookie, and only headers of the list. ``body`` None is a tombstone: it has
    been answered, and the body is not kept."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    # level, text, extra tags, whether the text is safe as HTML
    messages: tuple[tuple[int, str, str, bool], ...] = ()
    # attributes of the response that other middleware looks at
    marks: dict[str, Any] = field(default_factory=dict)

    @property
    def location(self) -> str | None:
        return next((value for name, value in self.headers if name.lower() == "location"), None)

    def without_body(self) -> Answer:
        return replace(self, body=None)

    def facts(self) -> str:
        """Everything but the body, as JSON."""
        marks = {"marks": self.marks} if self.marks else {}
        return json.dumps({"status": self.status, "headers": self.headers, "messages": self.messages, **marks})

    @classmethod
    def of(cls, facts: str, body: bytes | None) -> Answer:
        """The answer that :meth:`facts` and a body are of. ValueError if they are of none."""
        try:
            found = json.loads(facts)
            return cls(
                status=int(found["status"]),
                headers=tuple((str(name), str(value)) for name, value in found["headers"]),
                body=body,
                messages=tuple((int(a), str(b), str(c), bool(d)) for a, b, c, d in found["messages"]),
                marks=dict(found.get("marks", {})),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("This is no stored answer.") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a storage knows of one key of one principal on one route.

    ``expired``: the claim's lease, or the lifetime of what is kept, was over when it was read, by the clock of the
    storage. ``answer`` is None unless the state is "completed". ``phases`` maps the names of finished phases to their
    results.
    """

    scope: str
    state: str
    owner: str
    fingerprint: str
    expired: bool = False
    answer: Answer | None = None
    phases: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is asked of a storage: the right to run ``scope``, for ``claim_ttl`` seconds at first. What is kept
    afterwards lives for ``ttl`` seconds. ``principal``, ``method`` and ``route`` are for people who look at a list.
    ``quota``: how many keys of ``principal`` may live; None for any number."""

    scope: str
    owner: str
    fingerprint: str
    claim_ttl: float
    ttl: float
    principal: str = ""
    method: str = ""
    route: str = ""
    quota: int | None = None


def record_of(
    scope: str,
    state: str,
    owner: str,
    fingerprint: str,
    *,
    expired: bool,
    answer: Answer | None,
    phases: dict[str, Any] | None,
) -> Record:
    """A record as it was read. What cannot be read (``phases`` None, a state that is none) must not run again: it
    counts as done, or as broken off, until its lifetime ends."""
    if state not in STATES or (phases is None and state != COMPLETED):
        state, expired = UNKNOWN, False
    return Record(
        scope=scope,
        state=state,
        owner=owner,
        fingerprint=fingerprint,
        expired=expired,
        answer=answer,
        phases=phases or {},
    )
