"""edit_lock() for code: sync and async, renewed, refused, overridden, lost."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError

from django_distlock import LockLost
from django_distlock.editing import EditConflict, edit_lock, store
from django_distlock.editing.records import Busy, EditLease
from django_distlock.editing.resources import resource_of
from django_distlock.editing.signals import edit_overridden
from testproject.articles.models import Article
from tests.conftest import eventually
from tests.editing.store.desks import Desk, expire, make_article

LOG = "django_distlock.editing"


def held_by(article: Article) -> str | None:
    resource = resource_of(article)
    row = store.read([resource]).get(resource.digest)
    return row.owner.label if row is not None and row.held and row.owner is not None else None


def test_others_are_kept_away_for_the_block(alias: str) -> None:
    article, bob = make_article(alias), Desk("bob")
    bob.open(article)
    with edit_lock(article, by="nightly import") as lease:
        assert lease.held
        assert lease.fence is not None
        lease.check()
        assert isinstance(found := bob.claim(resource_of(article)), Busy)
        assert found.holder is not None
        assert held_by(article) == "nightly import"
        with pytest.raises(EditConflict, match="nightly import"):
            bob.save("bob")
    assert held_by(article) is None
    with pytest.raises(EditConflict) as refused:  # the block counts as a write
        bob.save("bob")
    assert (refused.value.reason, refused.value.changed_by) == ("changed", "nightly import")


def test_a_block_that_writes_nothing_refuses_no_form(alias: str) -> None:
    article, bob = make_article(alias), Desk("bob")
    bob.open(article)
    with edit_lock(article, by="an audit", write=False):
        pass
    bob.save("bob")


def test_a_block_that_fails_refuses_no_form(alias: str) -> None:
    article, bob = make_article(alias), Desk("bob")
    bob.open(article)
    with pytest.raises(ZeroDivisionError), edit_lock(article, by="nightly import"):
        1 / 0  # noqa: B018
    assert held_by(article) is None
    bob.save("bob")


async def _fail(article: Article) -> None:
    async with edit_lock(article, by="nightly import"):
        1 / 0  # noqa: B018


def test_an_async_block_that_fails_refuses_no_form(alias: str) -> None:
    article, bob = make_article(alias), Desk("bob")
    bob.open(article)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(_fail(article))
    bob.save("bob")


def test_refused_while_a_person_edits(alias: str) -> None:
    article = make_article(alias)
    Desk("bob").claim(resource_of(article))
    with pytest.raises(EditConflict) as refused, edit_lock(article, by="nightly import"):
        pytest.fail("it is held")
    assert refused.value.reason == "held"
    assert refused.value.holder is not None
    assert refused.value.holder.label == "Bob"


def test_two_blocks_of_one_name_exclude_each_other(alias: str) -> None:
    article = make_article(alias)
    with edit_lock(article, by="nightly import"), pytest.raises(EditConflict), edit_lock(article, by="nightly import"):
        pytest.fail("it is held")


def test_an_override_is_explicit_logged_and_sent(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    article, bob = make_article(alias), Desk("bob")
    bob.claim(resource_of(article))
    heard: list[dict[str, Any]] = []

    def hear(**told: Any) -> None:
        heard.append(told)

    edit_overridden.connect(hear)
    try:
        with (
            caplog.at_level(logging.WARNING, LOG),
            edit_lock(article, by="support", override=True, reason="ticket 7") as lease,
        ):
            assert lease.held
            assert bob.renew(resource_of(article)).reason == "taken_over"
    finally:
        edit_overridden.disconnect(hear)
    assert "support took articles.article" in caplog.text
    assert [(told["before"].owner.label, told["reason"]) for told in heard] == [("Bob", "ticket 7")]


def test_an_override_of_a_free_object_is_none(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, LOG), edit_lock(make_article(alias), by="support", override=True):
        pass
    assert not caplog.records


def test_it_is_renewed_for_as_long_as_the_block_takes(alias: str) -> None:
    article, bob = make_article(alias), Desk("bob")
    resource = resource_of(article)
    with edit_lock(article, by="nightly import", ttl=2.0):
        first = store.read([resource])[resource.digest].seen
        eventually(lambda: store.read([resource])[resource.digest].seen > first, "it is not renewed")
        expire(resource)  # as after a pause of the process
        eventually(lambda: held_by(article) == "nightly import", "it is not renewed after it has expired")
        assert isinstance(bob.claim(resource), Busy)


def test_a_block_that_has_lost_it_is_told(alias: str) -> None:
    article, boss = make_article(alias), Desk("boss")

    def work() -> None:
        with edit_lock(article, by="nightly import", ttl=0.6) as lease:
            assert isinstance(boss.take_over(resource_of(article)), EditLease)
            eventually(lambda: not lease.held, "it is not noticed")
            with pytest.raises(LockLost, match="taken over by Boss"):
                lease.check()

    with pytest.raises(LockLost, match="taken over by Boss"):
        work()
    assert held_by(article) == "Boss"


def test_an_error_of_the_block_comes_first(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    article, boss = make_article(alias), Desk("boss")

    def work() -> None:
        with edit_lock(article, by="nightly import"):
            boss.take_over(resource_of(article))
            raise LookupError

    with pytest.raises(LookupError):
        work()
    assert "not given back" in caplog.text


def test_inside_a_transaction_it_is_refused(alias: str) -> None:
    article = make_article(alias)
    with pytest.raises(TransactionManagementError, match="outside atomic"), transaction.atomic(using=alias):
        edit_lock(article, by="nightly import").__enter__()


def test_it_is_used_once(alias: str) -> None:
    lock = edit_lock(make_article(alias), by="nightly import")
    with lock, pytest.raises(RuntimeError, match="has been used"):
        lock.__enter__()


def test_arguments_are_checked(alias: str) -> None:
    article = make_article(alias)
    with pytest.raises(ValueError, match="by must say"):
        edit_lock(article, by=" ")
    with pytest.raises(ValueError, match="ttl"):
        edit_lock(article, by="x", ttl=0)
    with pytest.raises(ValueError, match="not saved"):
        edit_lock(Article(), by="x")


def test_mode_off_costs_nothing_and_warn_goes_on(
    alias: str, settings: Any, caplog: pytest.LogCaptureFixture, django_assert_num_queries: Any
) -> None:
    article = make_article(alias)
    Desk("bob").claim(resource_of(article))
    settings.DISTLOCK_EDITING = {"MODE": "off"}
    with django_assert_num_queries(0, connection=connections[alias]), edit_lock(article, by="x") as lease:
        assert not lease.held
        lease.check()
    settings.DISTLOCK_EDITING = {"MODE": "warn"}
    with caplog.at_level(logging.WARNING, LOG), edit_lock(article, by="nightly import"):
        pass
    assert "goes on, although" in caplog.text
    resource = resource_of(article)
    assert store.read([resource])[resource.digest].changed_by == "nightly import"


async def use(article: Article) -> tuple[str | None, str | None]:
    async with edit_lock(article, by="nightly import") as lease:
        assert lease.held
        inside = await sync_to_async(held_by)(article)
    return inside, await sync_to_async(held_by)(article)


def test_async(databases: None) -> None:
    article = make_article("default")
    try:
        assert asyncio.run(use(article)) == ("nightly import", None)
    finally:
        article.delete()


async def cancelled_at_the_door(article: Article) -> None:
    lock = edit_lock(article, by="nightly import")
    task = asyncio.create_task(lock.__aenter__())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def cancelled_inside(article: Article) -> None:
    async def work() -> None:
        async with edit_lock(article, by="nightly import"):
            inside.set()
            await asyncio.sleep(60)

    inside = asyncio.Event()
    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("program", [cancelled_at_the_door, cancelled_inside])
def test_a_cancelled_task_leaves_nothing_held(databases: None, program: Any) -> None:
    article, bob = make_article("default"), Desk("bob")
    bob.open(article)
    try:
        asyncio.run(program(article))
        assert held_by(article) is None
        bob.save("bob")  # nothing was written
    finally:
        article.delete()
