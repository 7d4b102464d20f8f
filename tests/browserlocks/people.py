"""Ada and Bo, their tabs, and what distlock.js would send."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client

from django_distlock.models import BrowserTicket, WebLease

LEASES, CSRF = "/distlock/leases/", "/distlock/csrf/"
RENEW, EVENTS = f"{LEASES}renew/", f"{LEASES}events/"
NAMES = ("ada", "bo")


def remove_people() -> None:
    """With their locks and places."""
    for table in (WebLease, BrowserTicket):
        table.rows.all().delete()
    Session.objects.all().delete()
    User.objects.filter(username__in=NAMES).delete()


def new() -> str:
    """The id of a lease, as a client makes it."""
    return secrets.token_hex(16)


class Person:
    """A user with a browser; without a user a visitor."""

    def __init__(self, user: Any = None, **options: Any) -> None:
        self.user = user
        self.client = Client(**options)
        if user is not None:
            self.client.force_login(user)

    def grant(self, name: str = "cart", host: str = "testserver", **options: Any) -> str:
        return str(self.client.get("/grant/", {"name": name, **options}, headers={"host": host}).json()["grant"])

    def tab(self, name: str = "cart", **options: Any) -> Tab:
        return Tab(self, name, self.grant(name, **options))

    def post(self, path: str, body: Any, **more: Any) -> Any:
        return self.client.post(path, body, content_type="application/json", **more)

    def ask(self, grant: str, lease: str = "", headers: Any = None, **wish: Any) -> Any:
        """The response to one request for the lock."""
        return self.post(LEASES, {"grant": grant, "id": lease or new(), "queue": True, **wish}, headers=headers)

    def renew(self, *tabs: Tab, **more: Any) -> Any:
        batch = [{"id": tab.lease, "fence": tab.fence, "grant": tab.grant} for tab in tabs]
        return self.post(RENEW, {"leases": batch}, **more)

    def release(self, lease: str, **more: Any) -> Any:
        return self.client.post(f"{LEASES}{lease}/release/", **more)


@dataclass
class Tab:
    """One that wants one lock."""

    person: Person
    name: str
    grant: str
    lease: str = field(default_factory=new)
    fence: int = 0

    def ask(self, **wish: Any) -> Any:
        response = self.person.ask(self.grant, self.lease, **wish)
        self.fence = response.json().get("fence", self.fence)
        return response

    def take(self, **wish: Any) -> Tab:
        response = self.ask(**wish)
        assert response.status_code == 201, response.content
        return self

    def wait(self, **wish: Any) -> Tab:
        response = self.ask(**wish)
        assert response.status_code == 409, response.content
        return self

    def renew(self) -> Any:
        """The answer for this lease."""
        return self.person.renew(self).json()["leases"][0]

    def release(self) -> None:
        assert self.person.release(self.lease).status_code == 204

    @property
    def header(self) -> str:
        return f"{self.lease};{self.fence}"

    def post(self, path: str, header: str | None = None, **headers: str) -> Any:
        """To a view that requires the lock."""
        sent = {"Distlock-Lease": self.header if header is None else header, **headers}
        return self.person.client.post(f"/{path}/", headers=sent)


def holder_of(name: str = "cart") -> str:
    """The id of the lease in the row, also if it has expired; "" for a free name."""
    row = WebLease.rows.filter(name=name).first()
    return row.lease if row is not None else ""


def refusal(response: Any) -> tuple[int, Any]:
    return response.status_code, response.json()
