"""How many Python files of the package a POST with a new key enters. Each number may only fall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.idempotency.conftest import MIDDLEWARE, Sender, every_database
from tests.support.profiled import files_entered

if TYPE_CHECKING:
    from tests.idempotency.views import Stage


@every_database
@pytest.mark.parametrize(
    ("shape", "middleware", "most"),
    [("plain", True, 8), ("decorated", True, 9), ("decorated", False, 9)],
    ids=["by the middleware", "by both", "by the decorator"],
)
def test_files_that_a_first_post_enters(site: Stage, settings: Any, shape: str, middleware: bool, most: int) -> None:
    settings.MIDDLEWARE = MIDDLEWARE if middleware else MIDDLEWARE[:-1]
    sender = Sender()
    for number in range(2):
        sender.post(shape, key=f"warm-{number}")
    _, entered = files_entered(lambda: sender.post(shape, key="new"))
    assert site.effects == 3
    assert len(entered) == most, sorted(entered)


@pytest.mark.parametrize(("alias", "most"), [("default", 10), ("postgres", 10)])
def test_files_that_a_first_post_enters_in_the_exactly_once_mode(site: Stage, most: int) -> None:
    """Not MariaDB, where a named lock is acquired too, which is another trip."""
    sender = Sender()
    for number in range(2):
        sender.post("atomic", key=f"warm-{number}")
    _, entered = files_entered(lambda: sender.post("atomic", key="new"))
    assert site.effects == 3
    assert len(entered) == most, sorted(entered)
