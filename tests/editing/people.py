"""Ada, Bo and their clients, and what a browser with the script would send."""

from __future__ import annotations

import re
import secrets
from html import unescape
from typing import Any

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.test import Client
from django.test.html import parse_html

from django_distlock.models import WebLease
from testproject.articles.models import Article, Source

HIDDEN = re.compile(r'<input type="hidden" name="(distlock_edit\w*)" value="([^"]*)"')
GRANT, LEASE, CHOICE = "distlock_edit", "distlock_edit_lease", "distlock_edit_choice"

# The pages that forms are from, by grant.
PLACES: dict[str, str] = {}


def make_person(name: str, **more: Any) -> User:
    user = User.objects.create(username=name, first_name=name.title(), password="!", is_staff=True, **more)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="articles"))
    return user


def remove_people() -> None:
    LogEntry.objects.all().delete()
    Session.objects.all().delete()
    WebLease.rows.all().delete()
    Article.objects.all().delete()
    User.objects.filter(username__in=["ada", "bo", "boss", "stranger"]).delete()


def hidden(response: Any) -> dict[str, str]:
    """The hidden fields of the first form in a page."""
    found: dict[str, str] = {}
    for name, value in HIDDEN.findall(response.content.decode()):
        found.setdefault(name, unescape(value))
    return found


def sent(*sources: Any, **fields: Any) -> dict[str, Any]:
    """What every form of an article sends: a page ignores the fields that it does not have."""
    found: dict[str, Any] = {"title": "A bridge opens", "body": "On Saturday.", "section": "news"}
    found |= {"sources-TOTAL_FORMS": len(sources), "sources-INITIAL_FORMS": len(sources)}
    for number, source in enumerate(sources):
        for name, value in {"id": source.pk, "article": source.article_id, "name": source.name}.items():
            found[f"sources-{number}-{name}"] = value
    return {**found, **fields}


def refused(response: Any, *texts: str) -> str:
    """The page of a refused save, which has these texts."""
    assert response.status_code == 409, response.status_code
    page: str = response.content.decode()
    for text in texts:
        assert text in page, text
    return page


class Person:
    """A user with a browser."""

    def __init__(self, user: User | None, **options: Any) -> None:
        self.user = user
        self.client = Client(**options)
        self.place = ""  # the page that was opened last
        if user is not None:
            self.client.force_login(user)

    def open(self, path: str) -> dict[str, str]:
        """The hidden fields of the page."""
        response = self.client.get(path)
        assert response.status_code == 200, response.status_code
        found = hidden(response)
        self.place = path
        if GRANT in found:  # a page without a lock has none
            PLACES[found[GRANT]] = path
        return found

    def hold(self, path: str) -> dict[str, str]:
        """The fields of an open form in which something was typed."""
        fields = self.open(path)
        return {**fields, LEASE: self.claim(fields[GRANT])}

    def give_back(self, fields: dict[str, str]) -> None:
        self.ask("release", fields[GRANT], lease=fields[LEASE])

    def renew(self, fields: dict[str, str]) -> dict[str, Any]:
        return self.ask("renew", fields[GRANT], lease=fields[LEASE])

    def save(self, path: str, fields: dict[str, str] | None = None, *sources: Any, **more: Any) -> Any:
        """Send the form with these hidden fields, or one that is opened now."""
        return self.client.post(path, sent(*sources, **(self.open(path) if fields is None else fields), **more))

    def beat(self, path: str, body: Any, **more: Any) -> Any:
        """The answer to a request of the script."""
        headers = {"Distlock-Edit": "1", **more.pop("headers", {})}
        return self.client.post(path, body, content_type="application/json", headers=headers, **more)

    def ask(self, verb: str, grant: str, *, path: str = "", **more: Any) -> dict[str, Any]:
        """What the script is told at the page that this grant is from."""
        lease = {} if verb == "watch" else {"lease": secrets.token_hex(16)}
        response = self.beat(path or PLACES.get(grant, self.place), {"verb": verb, "grant": grant, **lease, **more})
        assert response.status_code == 200, response.content
        found: dict[str, Any] = response.json()
        return found

    def claim(self, grant: str) -> str:
        """The id of the lease that this person has now."""
        lease = secrets.token_hex(16)
        answer = self.ask("claim", grant, lease=lease)
        assert answer["state"] == "held", answer
        return lease

    def patch(self, path: str, **headers: str) -> Any:
        return self.client.patch(path, {"body": "By the API."}, content_type="application/json", headers=headers)


def controls(response: Any, form: str | None = None) -> dict[str, Any]:
    """What a browser would send of the form with the id, or of those without."""
    found: dict[str, Any] = {}

    def walk(element: Any, inside: bool) -> None:
        facts = {name: value or "" for name, value in element.attributes}
        name = facts.get("name")
        if element.name == "form":
            inside = facts.get("id") == form
        elif inside and element.name == "textarea":
            found.setdefault(name, []).append("".join(map(str, element.children)))
        elif inside and element.name == "select":
            options = [dict(option.attributes) for option in element.children if not isinstance(option, str)]
            found[name] = [option.get("value") or "" for option in options if "selected" in option]
        elif inside and element.name == "input" and facts.get("type") not in ("submit", "button", "checkbox"):
            found.setdefault(name, []).append(facts.get("value", ""))
        for child in element.children:
            if not isinstance(child, str):
                walk(child, inside)

    walk(parse_html(response.content.decode()), False)
    return found


def names() -> list[str]:
    return list(Source.objects.order_by("name").values_list("name", flat=True))


def row(article: Article) -> WebLease | None:
    return WebLease.rows.filter(name=str(article.pk)).first()


def is_held(article: Article) -> bool:
    found = row(article)
    return found is not None and bool(found.lease)


def body() -> str:
    return Article.objects.get().body
