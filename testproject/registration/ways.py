"""The ways to register, side by side: what each one is called, what it does, what it promises."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """`slug` is the URL's part; `prevents` says whether one account per address is promised.

    `lock_name` is the name of the advisory lock that a sign-up takes, with {key} for the case-folded address.
    """

    slug: str
    title: str
    summary: str
    prevents: bool
    lock_name: str | None = None

    @property
    def url_name(self) -> str:
        return f"register-{self.slug}"


NONE = Way(
    "none",
    "No lock",
    "Check, hash the password, insert. Two requests that both check before either inserts make two accounts.",
    prevents=False,
)
TABLE = Way(
    "table",
    "Table lock",
    "LOCK TABLE around check and insert. It stops the race, and on PostgreSQL and MariaDB it also stops everybody "
    "who only reads the table: log-ins wait too.",
    prevents=True,
)
ADVISORY = Way(
    "advisory",
    "Advisory lock",
    '@advisory_lock("register") on the view. Registrations go one at a time; nobody else waits.',
    prevents=True,
    lock_name="register",
)
PER_EMAIL = Way(
    "advisory-per-email",
    "Advisory lock per address",
    '@advisory_lock("register:{sign_up.key}") on the view. Only registrations of the same address wait for each '
    "other; different addresses go side by side.",
    prevents=True,
    lock_name="register:{key}",
)
WAYS = (NONE, TABLE, ADVISORY, PER_EMAIL)
