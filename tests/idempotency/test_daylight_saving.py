"""Keys on a server whose time zone has daylight saving: one hour of the year occurs twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import eventually
from tests.idempotency.actors import Sender
from tests.idempotency.conftest import change
from tests.support.zones import autumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.idempotency.views import Stage
    from tests.support.zones import Autumn

pytestmark = pytest.mark.parametrize("alias", ["mariadb"])


@pytest.fixture
def clocks(site: Stage, alias: str) -> Iterator[Autumn]:
    with autumn(alias) as found:
        yield found


def test_a_request_in_flight_does_not_run_twice(site: Stage, sender: Sender, clocks: Autumn) -> None:
    """The repeated hour ends while the view runs, and the client sends its request again."""
    answers: list[int] = []

    def again(request: Any) -> None:
        site.during = lambda request: None
        clocks.over()
        answers.append(Sender(sender.key).post("retry").status_code)

    site.during = again
    clocks.after()
    assert sender.post("retry").status_code == 201
    assert answers == [409]
    assert site.effects == 1


@pytest.mark.tier2
def test_an_answer_is_not_kept_for_an_hour(site: Stage, sender: Sender, clocks: Autumn, settings: Any) -> None:
    change(settings, TTL=2, CLAIM_TTL=1)
    clocks.before()
    assert sender.post().status_code == 201
    clocks.after()
    eventually(lambda: "Idempotency-Replayed" not in sender.post(), "it is replayed after its lifetime", pause=0.1)
    assert site.effects == 2
