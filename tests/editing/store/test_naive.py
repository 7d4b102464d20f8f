"""The fault, shown on code that looks right, and the same order of events with the write rule.

Each naive save is what one writes first: it has a lease, and a version that it compares.
"""

from __future__ import annotations

import sqlite3
import threading
from typing import TYPE_CHECKING

import pytest
from django.db import OperationalError, connections, transaction

from django_distlock.editing.records import EditConflict
from django_distlock.editing.resources import resource_of
from django_distlock.editing.store import lock
from testproject.articles.models import Article
from tests.editing.store.desks import Desk, make_article, text_of, write_behind

if TYPE_CHECKING:
    from collections.abc import Callable

SERVERS = pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)


def elsewhere(alias: str, work: Callable[[], object]) -> None:
    """Run it on another connection, and wait until it is committed."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        finally:
            connections[alias].close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert not failed, failed


def naive_save(article: Article, shown: str, token: str, meanwhile: Callable[[], None], *, early: bool) -> bool:
    """Lock the row of the lease alone, and compare an unlocked read: before that lock (``early``), or after it."""
    alias = article._state.db or ""
    rows = Article._base_manager.using(alias).filter(pk=article.pk)
    with transaction.atomic(using=alias):
        found = rows.get() if early else None
        lock([resource_of(article)])
        if found is None:
            found = rows.get()
        if found.body != shown:
            return False
        meanwhile()
        found.body = f"{shown};{token}"
        found.save(using=alias, update_fields=["body"])
    return True


@SERVERS
@pytest.mark.parametrize("early", [True, False], ids=["read-before-the-lease", "read-after-the-lease"])
def test_fault_the_row_of_the_lease_alone_loses_a_write(alias: str, early: bool) -> None:
    """A command that knows no edit locks writes between the comparison and the save."""
    article = make_article(alias)
    saved = naive_save(
        article, "0", "mine", lambda: elsewhere(alias, lambda: write_behind(article, "theirs")), early=early
    )
    assert saved
    assert text_of(article) == "0;mine"


@SERVERS
def test_fault_a_version_that_was_read_before_the_lock_loses_a_save(alias: str) -> None:
    """Two forms under the lease: the second compares what it had read before it waited for the first."""
    article = make_article(alias)
    ada = Desk("ada")
    ada.open(article)
    unlocked = Article._base_manager.using(alias).get(pk=article.pk)
    elsewhere(alias, lambda: ada.save("ada"))
    with transaction.atomic(using=alias):
        lock([resource_of(article)])
        assert unlocked.body == "0"
        unlocked.body = "0;bob"
        unlocked.save(using=alias, update_fields=["body"])
    assert text_of(article) == "0;bob"


@SERVERS
def test_the_write_rule_makes_the_other_writer_wait(alias: str) -> None:
    """The same events: the command waits for the end of the save, and nothing is lost."""
    article, ada = make_article(alias), Desk("ada")
    ada.open(article)
    begun, ended = threading.Event(), threading.Event()

    def command() -> None:
        begun.set()
        write_behind(article, "theirs")
        ended.set()
        connections[alias].close()

    thread = threading.Thread(target=command)

    def meanwhile(save: object) -> None:
        thread.start()
        begun.wait(10)
        assert not ended.wait(0.2)

    ada.save("mine", meanwhile)
    thread.join(30)
    assert text_of(article) == "0;mine;theirs"


def test_the_write_rule_sees_the_write_of_a_command(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    ada.open(article)
    write_behind(article, "theirs")
    with pytest.raises(EditConflict) as refused:
        ada.save("mine")
    assert refused.value.reason == "changed"
    assert text_of(article) == "0;theirs"


def rival(article: Article) -> sqlite3.Connection:
    return sqlite3.connect(connections["default"].settings_dict["NAME"], timeout=0, isolation_level=None)


def test_fault_a_deferred_transaction_of_sqlite_is_refused_at_once(
    databases: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads first and gets the write lock too late: "database is locked", with no wait at all."""
    article = make_article("default")
    monkeypatch.setattr(connections["default"], "transaction_mode", "DEFERRED")
    other = rival(article)
    try:
        with transaction.atomic():
            found = Article._base_manager.get(pk=article.pk)
            other.execute("UPDATE articles_article SET title = 'theirs' WHERE id = ?", [article.pk])
            with pytest.raises(OperationalError, match="locked"):
                found.save(update_fields=["body"])
            transaction.set_rollback(True)
    finally:
        other.close()
        article.delete()


def test_a_save_on_sqlite_has_the_write_lock_before_it_reads(databases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the settings say DEFERRED."""
    article, ada = make_article("default"), Desk("ada")
    monkeypatch.setattr(connections["default"], "transaction_mode", "DEFERRED")
    ada.open(article)
    other = rival(article)

    def meanwhile(save: object) -> None:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("UPDATE articles_article SET title = 'theirs' WHERE id = ?", [article.pk])

    try:
        ada.save("mine", meanwhile)
        assert text_of(article) == "0;mine"
        assert connections["default"].transaction_mode == "DEFERRED"  # type: ignore[attr-defined]
    finally:
        other.close()
        article.delete()
