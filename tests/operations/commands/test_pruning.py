"""What ``prune()`` reaches: everything that is kept, for as long as its own setting says, whoever else is down."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError
from django.db import connection

from django_distlock import BackendUnavailable
from django_distlock.models import IdempotencyRecord, LockEvent
from django_distlock.operations.pruning import prune
from tests.operations.commands.test_list import call

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("databases")


@pytest.fixture
def events() -> Iterator[None]:
    """One of ten days ago, one of fifty."""
    for days in (10, 50):
        at = datetime.now(UTC) - timedelta(days=days)
        LockEvent.rows.create(alias="a", digest="d", name="n", kind="lost", at=at, reason="", holder="")
    yield
    LockEvent.rows.all().delete()


@pytest.mark.parametrize(("kept", "deleted"), [(None, 1), (90, 0), (5, 2)])
def test_events_go_when_their_setting_says(settings: Any, events: None, kept: int | None, deleted: int) -> None:
    """Who keeps the history for ninety days does not lose it to a nightly `prune` with its thirty."""
    if kept is not None:
        settings.DISTLOCK_HISTORY_DAYS = kept
    try:
        assert prune(days=30)["events"] == deleted
    finally:
        if kept is not None:
            del settings.DISTLOCK_HISTORY_DAYS


def test_one_server_that_is_down_keeps_nothing_else_from_being_pruned(settings: Any, events: None) -> None:
    backend = "django_distlock.backends.postgres.AdvisoryBackend"
    settings.DISTLOCK = {
        "nowhere": {"BACKEND": backend, "OPTIONS": {"database": "default"}},  # SQLite
        "leasetable": settings.DISTLOCK["leasetable"],
    }
    IdempotencyRecord.rows.create(scope="s", state="done", claimed_at=0, expires_at=0, lives_until=0)
    with pytest.raises(Exception, match="not PostgreSQL"):
        prune(days=30)
    assert (LockEvent.rows.count(), IdempotencyRecord.rows.count()) == (1, 0)


def test_a_table_that_is_not_there_is_no_traceback(events: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_distlock_event RENAME TO django_distlock_moved")
    try:
        with pytest.raises(BackendUnavailable, match="events"):
            prune(days=30)
        with pytest.raises(CommandError, match="events"):
            call("prune")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE django_distlock_moved RENAME TO django_distlock_event")
