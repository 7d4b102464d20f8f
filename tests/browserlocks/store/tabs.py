"""Browser tabs that ask, beat and give back, without a browser."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_distlock.leases import queue, rows, upkeep
from django_distlock.leases.records import Row, digest_of, holder_of, named
from django_distlock.models import BrowserTicket

if TYPE_CHECKING:
    from django_distlock.leases.records import Lost, Resource, Waiting

TTL = 600.0
INTERVAL = 300.0  # the tickets outlive a test


def new_id() -> str:
    return secrets.token_hex(8)


def write(alias: str, text: str, *parameters: Any) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(text, parameters)


def forget_everything(alias: str) -> None:
    write(alias, "DELETE FROM django_distlock_weblease")
    write(alias, "DELETE FROM django_distlock_browserticket")


def counts(alias: str, principal: str) -> tuple[int, int]:
    """How many leases and live waiting places the principal has."""
    alive = BrowserTicket.rows.using(alias).filter(principal=principal, alive_until__gt=1)
    return len(upkeep.held(alias, of_objects=False, principal=principal)), alive.count()


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

    @property
    def resource(self) -> Resource:
        return named(self.alias, self.name)

    def ask(self, **options: Any) -> Row | Waiting:
        wish = {"ttl": TTL, "queue": True, "interval": INTERVAL, **options}
        person = {"lease": self.lease, "principal": self.principal, "label": self.person.title()}
        found = queue.acquire(self.alias, self.name, **{**person, **wish})
        self.fence = getattr(found, "fence", self.fence)
        return found

    def take(self, **options: Any) -> Row:
        found = self.ask(**options)
        assert isinstance(found, Row), found
        return found

    def wait(self, **options: Any) -> Waiting:
        found = self.ask(**options)
        assert not isinstance(found, Row), found
        return found

    def renew(self, ttl: float = TTL) -> Row | Lost:
        return rows.renew(self.resource, self.lease, ttl, principal=self.principal, fence=self.fence)

    def release(self, name: str | None = None) -> bool:
        return queue.release(self.alias, self.lease, principal=self.principal, name=name)

    def leave(self) -> None:
        queue.leave(self.alias, self.lease, principal=self.principal)

    def lock(self, principal: str | None = None) -> Row | None:
        return rows.lock_current(self.resource, self.lease, self.fence, principal or self.principal)

    def end(self) -> Row | None:
        """An operator breaks its lease."""
        return upkeep.break_lease(self.resource, self.fence)

    def row(self) -> Row | None:
        return rows.read_one(self.resource)

    def expire(self) -> None:
        """The lease of the name runs out, whoever has it."""
        text = "UPDATE django_distlock_weblease SET expires_at = 1 WHERE digest = %s"
        write(self.alias, text, digest_of(self.name))

    def miss(self) -> None:
        """Its ticket dies: it has not asked for too long."""
        text = "UPDATE django_distlock_browserticket SET alive_until = 1 WHERE lease = %s AND principal = %s"
        write(self.alias, text, self.lease, self.principal)
