"""The ways to register, side by side: what each one is called, what it does, what it promises."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """One way to register.

    `slug` is its part of the URL, `code` what stands above or in its view; `prevents` says whether it promises one
    account per address. `lock_name` is the advisory lock that a sign-up takes, {key} being the case-folded address.
    """

    slug: str
    title: str
    code: str
    summary: str
    prevents: bool
    lock_name: str | None = None

    @property
    def url_name(self) -> str:
        return f"register-{self.slug}"


NONE = Way(
    "none",
    "No lock",
    "",
    "Check, hash the password, insert. Two requests that both check before either inserts make two accounts.",
    prevents=False,
)
TABLE = Way(
    "table",
    "Table lock",
    "@table_lock(Account)",
    "The table locked around check and insert, against code too that knows of no agreement. On MySQL and MariaDB "
    "those who only read the table wait as well, log-ins among them.",
    prevents=True,
)
ROW = Way(
    "row",
    "Row lock",
    "with row_lock(Door, pk=Door.REGISTRATION)",
    "One row that every registration locks: the row of an account that does not exist yet cannot be locked.",
    prevents=True,
)
ADVISORY = Way(
    "advisory",
    "Advisory lock",
    '@advisory_lock("register")',
    "One name for all registrations: they go one at a time, and nobody else waits.",
    prevents=True,
    lock_name="register",
)
PER_EMAIL = Way(
    "advisory-per-email",
    "Advisory lock per address",
    '@advisory_lock("register:{sign_up.key}")',
    "One name per address: only registrations of the same address wait for each other.",
    prevents=True,
    lock_name="register:{key}",
)
WAYS = (NONE, TABLE, ROW, ADVISORY, PER_EMAIL)
