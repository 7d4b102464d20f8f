"""None of these tests is about the half second that a caller has who does not wait."""

from __future__ import annotations

import pytest

from tests.support.unhurried import give_time


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    give_time(monkeypatch.setattr)
