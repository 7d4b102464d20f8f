"""Browser tabs that ask, beat and give back, without a browser."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_distlock.browser import store
from django_distlock.browser.records import BrowserLease, digest_of, holder_of

if TYPE_CHECKING:
    from django_distlock.browser.records import LeaseLost, Waiting


TTL = 600.0
# Tickets that outlive a test.
INTERVAL = 300.0


def new_id() -> str:
    return secrets.token_hex(8)


def write(alias: str, text: str, *parameters: Any) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(text, parameters)


def forget_everything(alias: str) -> None:
    write(alias, "DELETE FROM django_distlock_browserlock")
    write(alias, "DELETE FROM django_distlock_browserticket")


def expire(alias: str, name: str) -> None:
    """The lease of a name runs out."""
    write(alias, "UPDATE django_distlock_browserlock SET expires_at = 1 WHERE digest = %s", digest_of(name))


@dataclass
class Tab:
    """One tab of one person, that wants one name."""

    alias: str
    name: str
    person: str = "ada"
    lease: str = field(default_factory=new_id)
    fence: int = 0

    @property
    def principal(self) -> str:
        return f"user:{self.person}"

    @property
    def holder(self) -> str:
        return holder_of(self.lease, self.principal)

    def ask(self, **options: Any) -> BrowserLease | Waiting:
        wish = {"ttl": TTL, "queue": True, "interval": INTERVAL, **options}
        person = {"lease": self.lease, "principal": self.principal, "label": self.person.title()}
        found = store.acquire(self.alias, self.name, **person, **wish)
        if isinstance(found, BrowserLease):
            self.fence = found.fence
        return found

    def take(self, **options: Any) -> BrowserLease:
        found = self.ask(**options)
        assert isinstance(found, BrowserLease), found
        return found

    def wait(self, **options: Any) -> Waiting:
        found = self.ask(**options)
        assert not isinstance(found, BrowserLease), found
        return found

    def renew(self, ttl: float = TTL) -> BrowserLease | LeaseLost:
        leases = [(self.name, self.lease, self.fence)]
        return store.renew(self.alias, leases, principal=self.principal, ttl=ttl)[self.lease]

    def release(self) -> bool:
        return store.release(self.alias, self.lease, principal=self.principal)

    def leave(self) -> None:
        store.leave(self.alias, self.lease, principal=self.principal)

    def lock(self) -> BrowserLease | None:
        return store.lock_for_update(self.alias, self.name, self.lease, self.fence, self.principal)

    def miss(self) -> None:
        """Its ticket dies: it has not asked for too long."""
        write(
            self.alias,
            "UPDATE django_distlock_browserticket SET alive_until = 1 WHERE lease = %s AND principal = %s",
            self.lease,
            self.principal,
        )
