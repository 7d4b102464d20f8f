"""edit_lock() for code: sync and async, renewed, refused, overridden, lost."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError

from django_distlock import BackendUnavailable, LockLost
from django_distlock.editing import EditConflict, edit_lock
from django_distlock.editing.records import EditLease
from django_distlock.editing.resources import resource_of
from django_distlock.editing.signals import edit_overridden
from django_distlock.leases import rows
from django_distlock.leases.records import Busy, Resource
from testproject.articles.models import Article
from tests.conftest import eventually
from tests.editing.store.desks import Desk, emptied, expire, hearing, make_article

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG = "django_distlock.editing"


@pytest.fixture
def article(databases: None) -> Iterator[Article]:
    for alias in emptied("default"):
        yield make_article(alias)


@pytest.fixture
def resource(article: Article) -> Resource:
    return resource_of(article)


@pytest.fixture
def bob(article: Article) -> Desk:
    """With an open form."""
    desk = Desk("bob")
    desk.open(article)
    return desk


def importing(article: Article, **options: Any) -> Any:
    return edit_lock(article, by="nightly import", **options)


def held_by(article: Article) -> str | None:
    (row,) = rows.read([resource_of(article)]).values()
    return row.label if row.held else None


def test_others_are_kept_away_for_the_block(article: Article, resource: Resource, bob: Desk) -> None:
    bob.claim(resource)
    with pytest.raises(EditConflict, match="Bob") as refused, importing(article):
        pytest.fail("it is held")
    assert (refused.value.reason, refused.value.holder.label) == ("held", "Bob")
    bob.release(resource)
    with importing(article) as lease:
        assert lease.held
        assert lease.fence is not None
        lease.check()
        assert isinstance(bob.claim(resource), Busy)
        assert held_by(article) == "nightly import"
        with pytest.raises(EditConflict, match="nightly import"):
            bob.save("bob")
        with pytest.raises(EditConflict), importing(article):
            pytest.fail("it is held")
    assert held_by(article) is None
    with pytest.raises(EditConflict) as refused:  # the block counts as a write
        bob.save("bob")
    assert (refused.value.reason, refused.value.changed_by) == ("changed", "nightly import")


async def _cancelled(article: Article) -> None:
    task = asyncio.create_task(importing(article).__aenter__())
    asyncio.get_running_loop().call_soon(task.cancel)  # after the first step of the task
    with pytest.raises(asyncio.CancelledError):
        await task
    inside = asyncio.Event()

    async def work() -> None:
        async with importing(article):
            assert await sync_to_async(held_by)(article) == "nightly import"
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_block_that_writes_nothing_or_ends_early_refuses_no_form(article: Article, bob: Desk) -> None:
    with importing(article, write=False):
        pass
    with pytest.raises(ZeroDivisionError), importing(article):
        raise ZeroDivisionError
    assert held_by(article) is None
    asyncio.run(_cancelled(article))
    assert held_by(article) is None
    bob.save("bob")


@pytest.mark.parametrize("attempts", [1, 40])
@pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
def test_it_never_ends_without_its_write_being_counted(
    alias: str, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a save keeps the row while many statements that give the lease back are sent."""
    monkeypatch.setattr(rows, "RELEASE_PAUSES", (0.0, 0.0))
    article, bob, other = make_article(alias), Desk("bob"), ExitStack()
    bob.open(article)
    sent: list[str] = []

    def end_the_save_in_time(execute: Any, sql: str, *rest: Any) -> Any:
        if "changed_by = " in sql:
            sent.append(sql)
            if len(sent) == attempts:
                saving.submit(other.close).result()
        return execute(sql, *rest)

    def save() -> None:
        other.callback(connections[alias].close)
        other.enter_context(transaction.atomic(using=alias))
        rows.lock([resource_of(article)])

    with ThreadPoolExecutor(1) as saving:
        with connections[alias].execute_wrapper(end_the_save_in_time), importing(article):
            saving.submit(save).result()
        saving.submit(other.close).result()
    assert held_by(article) is None
    with pytest.raises(EditConflict, match="nightly import"):
        bob.save("bob")


@pytest.mark.parametrize("alias", ["postgres"], indirect=True)
def test_a_write_that_could_not_be_counted_is_told(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "RELEASE_PAUSES", ())
    article = make_article(alias)
    with ThreadPoolExecutor(1) as other, ExitStack() as saving:

        def save() -> None:
            saving.callback(connections[alias].close)
            saving.enter_context(transaction.atomic(using=alias))
            rows.lock([resource_of(article)])

        try:
            with pytest.raises(BackendUnavailable, match="not counted"), importing(article, ttl=0.1):
                other.submit(save).result()
        finally:
            other.submit(saving.close).result()


def test_an_override_is_explicit_logged_and_sent(
    article: Article, resource: Resource, bob: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, LOG)
    with importing(article, override=True):
        assert not caplog.records, "the object was free"
    bob.claim(resource)
    with hearing(edit_overridden) as heard, importing(article, override=True, reason="ticket 7") as lease:
        assert lease.held
        assert bob.renew(resource).reason == "taken_over"
    assert "nightly import took articles.article" in caplog.text
    assert [(told["before"].label, told["reason"]) for told in heard] == [("Bob", "ticket 7")]


@pytest.mark.tier2
def test_it_is_renewed_for_as_long_as_the_block_takes(article: Article, resource: Resource, bob: Desk) -> None:
    def until_the_loss(lease: Any) -> None:
        bob.take_over(resource)
        eventually(lambda: not lease.held, "the takeover is not noticed")
        lease.check()

    with importing(article, ttl=2.0) as lease:
        ends = [rows.read([resource])[resource.digest].expires_in]

        def renewed() -> bool:
            ends.append(rows.read([resource])[resource.digest].expires_in)
            return ends[-1] > ends[-2]

        eventually(renewed, "it is not renewed")
        expire(resource)  # as after a pause of the process
        eventually(lambda: held_by(article) == "nightly import", "it is not renewed after it has expired")
        assert isinstance(bob.claim(resource), Busy)
        assert lease.held
    with pytest.raises(LockLost), importing(article, ttl=2.0) as lease:
        until_the_loss(lease)


@pytest.mark.parametrize("alias", ["postgres"], indirect=True)
@pytest.mark.tier2
def test_it_is_not_held_if_its_row_is_kept_for_longer_than_its_ttl(alias: str) -> None:
    """A save that takes so long, or another writer of SQLite: afterwards somebody else may be the first."""
    resource = resource_of(make_article(alias))
    with edit_lock(resource, by="nightly import", ttl=2.0) as lease:
        with transaction.atomic(using=alias):
            rows.lock([resource])
            eventually(lambda: not lease.held, "the renewals that fail count")
            with pytest.raises(LockLost, match="could not be renewed"):
                lease.check()
        eventually(lambda: lease.held, "it is not renewed once the row is free")


def test_a_block_that_has_lost_it_is_told(
    article: Article, resource: Resource, caplog: pytest.LogCaptureFixture
) -> None:
    boss = Desk("boss")
    with pytest.raises(LockLost, match="taken over by Boss"), importing(article):
        assert isinstance(boss.take_over(resource), EditLease)
    assert held_by(article) == "Boss"
    boss.release(resource)

    def work() -> None:
        with importing(article):
            boss.take_over(resource)
            raise LookupError

    with pytest.raises(LookupError):  # the error of the block comes first
        work()
    assert "not given back" in caplog.text


def test_what_is_refused(article: Article) -> None:
    with pytest.raises(TransactionManagementError, match="outside atomic"), transaction.atomic():
        importing(article).__enter__()
    lock = importing(article)
    with lock, pytest.raises(RuntimeError, match="has been used"):
        lock.__enter__()
    for obj, options, text in (
        (article, {"by": " "}, "by must say"),
        (article, {"by": "x", "ttl": 0}, "ttl"),
        (Article(), {"by": "x"}, "not saved"),
    ):
        with pytest.raises(ValueError, match=text):
            edit_lock(obj, **options)


def test_e10_mode_off_costs_nothing_and_warn_goes_on(
    article: Article, resource: Resource, bob: Desk, settings: Any, caplog: Any, django_assert_num_queries: Any
) -> None:
    bob.claim(resource)
    settings.DISTLOCK_EDITING = {"MODE": "off"}
    with django_assert_num_queries(0, connection=connections["default"]), importing(article) as lease:
        assert not lease.held
        lease.check()
    settings.DISTLOCK_EDITING = {"MODE": "warn"}
    with caplog.at_level(logging.WARNING, LOG), importing(article):
        pass
    assert "goes on, although" in caplog.text
    assert rows.read([resource])[resource.digest].changed_by == "nightly import"
