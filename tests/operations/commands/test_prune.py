"""What ``prune`` reaches: all that is kept, for as long as its own setting says; and what ``dumpdata`` leaves out."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from django_distlock import BackendUnavailable
from django_distlock.models import IdempotencyRecord, LockEvent
from django_distlock.operations.pruning import prune
from tests.faults.conftest import BACKENDS
from tests.operations.world import UNAVAILABLE, call

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("databases")


LOST = {"alias": "a", "digest": "d", "name": "canary", "kind": "lost", "reason": "", "holder": ""}
KEPT = {"scope": "s", "state": "completed", "body": b"canary", "claimed_at": 0, "expires_at": 0, "lives_until": 0}


@pytest.fixture
def records() -> Iterator[None]:
    """An event of ten days ago and one of fifty, and an answer that nobody can ask for any more."""
    for days in (10, 50):
        LockEvent.rows.create(at=datetime.now(UTC) - timedelta(days=days), **LOST)
    IdempotencyRecord.rows.create(**KEPT)
    yield
    for model in (LockEvent, IdempotencyRecord):
        model.rows.all().delete()


@pytest.mark.parametrize(("kept", "deleted"), [(None, 1), (90, 0), (5, 2)])
def test_events_go_when_their_setting_says(settings: Any, records: None, kept: int | None, deleted: int) -> None:
    """Who keeps the history for ninety days does not lose it to a nightly `prune` with its thirty."""
    settings.DISTLOCK = {"leasetable": settings.DISTLOCK["leasetable"]}
    with override_settings(DISTLOCK_HISTORY_DAYS=kept):
        assert prune(days=30)["events"] == deleted
    for wrong in (-1, float("nan"), "30", None):
        with pytest.raises((TypeError, ValueError), match="days"):
            prune(days=wrong)  # type: ignore[arg-type]


def test_what_is_down_or_missing_keeps_nothing_else_from_being_pruned(settings: Any, records: None) -> None:
    nowhere = {"BACKEND": BACKENDS["postgres"], "OPTIONS": {"database": "default"}}  # SQLite
    settings.DISTLOCK = {"nowhere": nowhere, "leasetable": settings.DISTLOCK["leasetable"]}
    with pytest.raises(Exception, match="not PostgreSQL"):
        prune(days=30)
    assert (LockEvent.rows.count(), IdempotencyRecord.rows.count()) == (1, 0)
    settings.DISTLOCK = {}
    with connections["default"].cursor() as cursor:
        cursor.execute("ALTER TABLE django_distlock_event RENAME TO django_distlock_moved")
        try:
            with pytest.raises(BackendUnavailable, match="events"):
                prune(days=30)
            status, _, err = call("prune")
        finally:
            cursor.execute("ALTER TABLE django_distlock_moved RENAME TO django_distlock_event")
    assert (status, "events" in err) == (UNAVAILABLE, True)


def test_dumpdata_leaves_out_the_site_key_stored_answers_and_the_history(records: None) -> None:
    """Who asked for what, and what he got: of no use elsewhere, and none of the business of who reads a fixture."""
    for everything in (False, True):
        out = io.StringIO()
        call_command("dumpdata", "django_distlock", use_base_manager=everything, stdout=out)
        assert json.loads(out.getvalue()) == []
    assert LockEvent.rows.count() == 2
