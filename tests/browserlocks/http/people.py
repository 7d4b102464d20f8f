"""Ada, Bo and their browsers, and what distlock.js would send."""

from __future__ import annotations

import secrets
from typing import Any

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client

from django_distlock.models import BrowserLockRow, BrowserTicket

LEASES, CSRF = "/distlock/leases/", "/distlock/csrf/"
RENEW, EVENTS = f"{LEASES}renew/", f"{LEASES}events/"
NAMES = ("ada", "bo")


def make_person(name: str, **more: Any) -> User:
    return User.objects.create(username=name, first_name=name.title(), password="!", **more)


def remove_people(alias: str = "default") -> None:
    """With their locks and places, on any database."""
    for table in (BrowserLockRow, BrowserTicket):
        table.rows.using(alias).all().delete()
    Session.objects.using(alias).all().delete()
    User.objects.using(alias).filter(username__in=NAMES).delete()


def new() -> str:
    """The id of a lease, as a client makes it."""
    return secrets.token_hex(16)


class Person:
    """A user with a browser; without a user a visitor."""

    def __init__(self, user: User | None = None, **options: Any) -> None:
        self.user = user
        self.client = Client(**options)
        if user is not None:
            self.client.force_login(user)

    @property
    def principal(self) -> str:
        """As the store knows this person at the site of the test client."""
        assert self.user is not None
        return f"user:auth.user:{self.user.pk}@testserver"

    def grant(self, name: str, host: str = "testserver", **options: Any) -> str:
        response = self.client.get("/grant/", {"name": name, **options}, headers={"host": host})
        assert response.status_code == 200, response.content
        found: str = response.json()["grant"]
        return found

    def post(self, path: str, body: Any, **more: Any) -> Any:
        return self.client.post(path, body, content_type="application/json", **more)

    def acquire(self, grant: str, lease: str | None = None, headers: Any = None, **more: Any) -> Any:
        """The response to one request for the lock."""
        body = {"grant": grant, "id": lease or new(), "queue": True, **more}
        return self.post(LEASES, body, headers=headers)

    def take(self, grant: str, **more: Any) -> tuple[str, int]:
        """The id and the fence of a lease that this person has now."""
        lease = new()
        response = self.acquire(grant, lease, **more)
        assert response.status_code == 201, response.content
        assert response.json()["id"] == lease
        return lease, response.json()["fence"]

    def renew(self, *leases: tuple[str, int, str], **more: Any) -> Any:
        """The response to a renewal of (id, fence, grant)."""
        batch = [{"id": lease, "fence": fence, "grant": grant} for lease, fence, grant in leases]
        return self.post(RENEW, {"leases": batch}, **more)

    def renewed(self, lease: str, fence: int, grant: str) -> dict[str, Any]:
        """The answer for one lease."""
        response = self.renew((lease, fence, grant))
        assert response.status_code == 200, response.content
        found: dict[str, Any] = response.json()["leases"][0]
        return found

    def release(self, lease: str, **more: Any) -> Any:
        return self.client.post(f"{LEASES}{lease}/release/", **more)

    def leases(self) -> list[dict[str, Any]]:
        response = self.client.get(LEASES)
        assert response.status_code == 200, response.content
        found: list[dict[str, Any]] = response.json()["leases"]
        return found


def holder_of(name: str) -> str:
    """The id of the lease in the row, also if it has expired; "" for a free name."""
    row = BrowserLockRow.rows.filter(name=name).first()
    return row.lease if row is not None else ""


def refusal(response: Any) -> tuple[int, Any]:
    return response.status_code, response.json()
