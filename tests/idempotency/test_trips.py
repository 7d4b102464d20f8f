"""How many Python files of the package a POST with a new key enters. Each number may only fall."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.idempotency.conftest import MIDDLEWARE, Sender, every_database
from tests.support.paths import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.idempotency.views import Stage


def files_entered(call: Callable[[], object]) -> list[str]:
    """The files of the package whose functions ``call`` enters in this thread."""
    found: set[str] = set()

    def note(frame: Any, event: str, argument: object) -> None:
        if frame.f_code.co_filename.startswith(f"{PACKAGE}/"):
            found.add(frame.f_code.co_filename.removeprefix(f"{PACKAGE}/"))

    gc.collect()
    gc.disable()  # what a test before has left is finalized at any time
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return sorted(found)


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
    entered = files_entered(lambda: sender.post(shape, key="new"))
    assert site.effects == 3
    assert len(entered) == most, entered


@pytest.mark.parametrize(("alias", "most"), [("default", 10), ("postgres", 10)])
def test_files_that_a_first_post_enters_in_the_exactly_once_mode(site: Stage, most: int) -> None:
    """Not MariaDB, where a named lock is acquired too, which is another trip."""
    sender = Sender()
    for number in range(2):
        sender.post("atomic", key=f"warm-{number}")
    entered = files_entered(lambda: sender.post("atomic", key="new"))
    assert site.effects == 3
    assert len(entered) == most, entered
