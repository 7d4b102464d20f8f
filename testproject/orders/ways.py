"""The ways to take an order, side by side: what each one is called, what it does, what it promises."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """`slug` is its part of the URL, `code` what makes it. `prevents`: is there a key, by which a repeated request is
    known as such?"""

    slug: str
    title: str
    code: str
    summary: str
    prevents: bool

    @property
    def url_name(self) -> str:
        return f"order-{self.slug}"

    @property
    def api_name(self) -> str:
        return f"order-api-{self.slug}"


NONE = Way(
    "none",
    "No key",
    "",
    "Pay, insert, redirect. Each click is a request of its own, and the server takes each for another order.",
    prevents=False,
)
IDEMPOTENT = Way(
    "idempotent",
    "Idempotency key",
    "{% idempotency_key %} and @idempotent",
    "The form brings a key. The first request claims it and runs; the others wait for its answer and get the same one. "
    "The claim is a row of its own, so nothing is locked while the payment is under way.",
    prevents=True,
)
ATOMIC = Way(
    "atomic",
    "Exactly once",
    "{% idempotency_key %} and @idempotent(atomic=True)",
    "Key, order and answer are one transaction: a server that is killed leaves all three or none. The transaction is "
    "open while the payment is under way.",
    prevents=True,
)
WAYS = (NONE, IDEMPOTENT, ATOMIC)
