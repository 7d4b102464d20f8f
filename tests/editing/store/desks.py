"""People at their desks: browser tabs that open, claim, beat and save, without a browser."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db.models import F, Value
from django.db.models.functions import Concat

from django_distlock.editing.grants import open_grant
from django_distlock.editing.records import EditLease, Owner
from django_distlock.editing.saving import run_save
from django_distlock.leases import rows
from django_distlock.models import BrowserTicket, WebLease
from testproject.articles.models import Article

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.dispatch import Signal

    from django_distlock.editing.grants import EditGrant
    from django_distlock.editing.saving import Save
    from django_distlock.leases.records import Resource

TTL = 600.0


def emptied(alias: str) -> Iterator[str]:
    """The database, without articles and leases."""
    for last in (False, True):
        for each in (Article.objects, WebLease.rows, BrowserTicket.rows):
            each.using(alias).all().delete()
        if not last:
            yield alias


def make_article(alias: str) -> Article:
    return Article.objects.using(alias).create(title="On locks", body="0")


def rows_of(article: Article) -> Any:
    return Article._base_manager.using(article._state.db).filter(pk=article.pk)


def write_behind(article: Article, token: str) -> None:
    """A write of code that knows no edit locks: one UPDATE that adds to the text."""
    rows_of(article).update(body=Concat(F("body"), Value(f";{token}")))


def text_of(article: Article) -> str:
    return rows_of(article).values_list("body", flat=True).get()


def expire(resource: Resource) -> None:
    """The lease of an object runs out."""
    WebLease.rows.using(resource.database).filter(digest=resource.digest).update(expires_at=1)


@contextmanager
def hearing(signal: Signal) -> Iterator[list[dict[str, Any]]]:
    """What is sent with the signal meanwhile."""
    heard: list[dict[str, Any]] = []

    def hear(**told: Any) -> None:
        heard.append(told)

    signal.connect(hear)
    try:
        yield heard
    finally:
        signal.disconnect(hear)


def new_id() -> str:
    return secrets.token_hex(8)


@dataclass
class Desk:
    """One tab of one person."""

    person: str
    tab: str = field(default_factory=new_id)
    lease: str = ""
    grant: EditGrant | None = None
    shown: str = ""

    @property
    def owner(self) -> Owner:
        return Owner(principal=f"user:{self.person}", label=self.person.title())

    def open(self, article: Article) -> None:
        """Render the form."""
        opened = open_grant(article, principal=self.owner.principal, fields=["title", "body"])
        self.grant, self.shown = opened.grant, article.body

    def claim(self, resource: Resource) -> Any:
        return self._held(lambda lease: rows.take("claim", resource, self.owner, lease, TTL))

    def adopt(self, resource: Resource) -> Any:
        return self._held(lambda lease: rows.take("adopt", resource, self.owner, lease, TTL, former=self.lease))

    def take_over(self, resource: Resource) -> Any:
        return self._held(lambda lease: rows.take("takeover", resource, self.owner, lease, TTL))

    def _held(self, ask: Callable[[str], Any]) -> Any:
        lease = new_id()
        found = ask(lease)
        if isinstance(found, EditLease):
            self.lease = lease
        return found

    def renew(self, resource: Resource) -> Any:
        return rows.renew(resource, self.lease, TTL, principal=self.owner.principal)

    def release(self, resource: Resource, reserve: float | None = None) -> None:
        rows.release(resource, self.lease, reserve, principal=self.owner.principal)

    def save(self, token: str, during: Callable[[Save], object] = lambda save: None) -> None:
        """Send the form: what was shown, and something more. EditConflict if it is refused."""

        def work(save: Save) -> None:
            during(save)
            article = save.object
            article.body = f"{self.shown};{token}"
            article.save(using=self.grant.database, update_fields=["title", "body"], force_update=True)
            save.wrote()
            save.keep()

        run_save(self.grant, self.owner, self.lease, work)
