"""Ada, Bo and their clients, and what a browser with the script would send."""

from __future__ import annotations

import re
import secrets
from html import unescape
from typing import TYPE_CHECKING, Any

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.test import Client

from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article

if TYPE_CHECKING:
    from collections.abc import Iterable

BEAT, RELEASE = "/distlock/editing/beat/", "/distlock/editing/release/"
HIDDEN = re.compile(r'<input type="hidden" name="(distlock_edit\w*)" value="([^"]*)"')


def make_person(name: str, **more: Any) -> User:
    user = User.objects.create(username=name, first_name=name.title(), password="!", is_staff=True, **more)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="articles"))
    return user


def remove_people() -> None:
    LogEntry.objects.all().delete()
    Session.objects.all().delete()
    EditLeaseRow.rows.all().delete()
    Article.objects.all().delete()
    User.objects.filter(username__in=["ada", "bo", "boss"]).delete()


def hidden(response: Any) -> dict[str, str]:
    """The hidden fields of the first form in a page."""
    found: dict[str, str] = {}
    for name, value in HIDDEN.findall(response.content.decode()):
        found.setdefault(name, unescape(value))
    return found


class Person:
    """A user with a browser."""

    def __init__(self, user: User | None, **options: Any) -> None:
        self.user = user
        self.client = Client(**options)
        self.tab = secrets.token_hex(16)
        if user is not None:
            self.client.force_login(user)

    def open(self, path: str) -> dict[str, str]:
        """The hidden fields of the page."""
        response = self.client.get(path)
        assert response.status_code == 200, response.status_code
        return hidden(response)

    def beat(self, *items: dict[str, Any], tab: str | None = None, **more: Any) -> Any:
        body = {"tab": tab or self.tab, "items": list(items)}
        return self.client.post(BEAT, body, content_type="application/json", **more)

    def ask(self, verb: str, grant: str, **more: Any) -> dict[str, Any]:
        """The answer to one item."""
        response = self.beat({"verb": verb, "grant": grant, **more})
        assert response.status_code == 200, response.content
        found: dict[str, Any] = response.json()["items"][0]
        return found

    def claim(self, grant: str) -> str:
        """The id of the lease that this person has now."""
        lease = secrets.token_hex(16)
        answer = self.ask("claim", grant, lease=lease)
        assert answer["state"] == "held", answer
        return lease

    def release(self, grants: Iterable[str], leases: Iterable[str], **more: Any) -> Any:
        data = {"tab": self.tab, "grant": list(grants), "lease": list(leases), **more}
        return self.client.post(RELEASE, data)


def row(article: Article) -> EditLeaseRow | None:
    return EditLeaseRow.rows.filter(object_pk=str(article.pk)).first()


def is_held(article: Article) -> bool:
    found = row(article)
    return found is not None and bool(found.lease)
