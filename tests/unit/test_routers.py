"""A router that keeps our tables out of a database is told by a check, by the doctor and at the first lock."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connections

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.manager.site_key import TABLE
from django_distlock.operations.doctor import diagnose

pytestmark = pytest.mark.usefixtures("databases")

MEMORY = "django_distlock.backends.memory.MemoryBackend"
ROUTER = "A router in DATABASE_ROUTERS keeps"


class KeepsOut:
    """As where each app has its database, and this one has none; of idempotency keys there is distlock.E034, of edit
    locks and browser locks distlock.W071."""

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        own_checks = ("idempotencyrecord", "weblease", "browserticket")
        return False if app_label == "django_distlock" and model_name not in own_checks else None


@pytest.fixture
def routed(settings: Any) -> Any:
    settings.DATABASE_ROUTERS = [f"{__name__}.KeepsOut"]
    settings.DISTLOCK_SITE_KEY = None
    settings.DISTLOCK = {"default": {}}
    return settings


def told() -> dict[str | None, str]:
    return {message.id: f"{message.msg} {message.hint}" for message in run_checks(tags=["distlock"])}


def test_the_site_key_has_no_place(routed: Any) -> None:
    ((identity, text),) = told().items()
    assert identity == "distlock.E068"
    assert f"There will be no site key. {ROUTER} the app django_distlock out of the 'default' database" in text
    assert "Or set DISTLOCK_SITE_KEY." in text
    routed.DISTLOCK_SITE_KEY = "k" * 40
    assert told() == {}
    routed.DISTLOCK_SITE_KEY, routed.DISTLOCK = None, {"default": {"BACKEND": MEMORY}}
    assert told() == {}, "nothing is needed for locks in memory"


@pytest.mark.parametrize(
    ("alias", "identity", "level"),
    [("postgres", "distlock.W068", "warning"), ("leasetable_mariadb", "distlock.E069", "error")],
)
def test_tables_of_an_alias_have_no_place(settings: Any, alias: str, identity: str, level: str) -> None:
    settings.DATABASE_ROUTERS = [f"{__name__}.KeepsOut"]
    settings.DISTLOCK_SITE_KEY = "k" * 40
    settings.DISTLOCK = {"default": {"BACKEND": MEMORY}, alias: settings.DISTLOCK[alias]}
    assert set(told()) == {identity}
    assert f"DISTLOCK[{alias!r}]: {ROUTER} the tables of " in told()[identity]
    found = [finding for finding in diagnose(alias) if finding.text.startswith(ROUTER)]
    assert [(finding.level, finding.alias) for finding in found] == [(level, alias)]


def test_the_doctor_and_the_first_lock_do_not_send_to_migrate_for_ever(routed: Any) -> None:
    """The row is not there, as `migrate` leaves it."""
    with connections["default"].cursor() as cursor:
        cursor.execute(f"UPDATE {TABLE} SET id = 2")
        try:
            with pytest.raises(BackendUnavailable, match=f"{ROUTER} the app django_distlock out"):
                advisory_lock("x").acquire()
            assert [each.level for each in diagnose() if ROUTER in each.text and not each.alias] == ["error"]
        finally:
            cursor.execute(f"UPDATE {TABLE} SET id = 1")
