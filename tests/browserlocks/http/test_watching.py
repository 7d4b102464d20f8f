"""What a stream tells its tab of the heads of the queues, and when a tab is told to ask again."""

from __future__ import annotations

import asyncio

from django_distlock.browser.http.actions import HEAD, refusal_of
from django_distlock.browser.http.watching import Watch
from django_distlock.browser.records import Head, Waiting, holder_of

PRINCIPAL = "user:1"


def test_a_lease_that_was_lost_is_told_its_next_turn() -> None:
    """Its tab asks with the same id again, and opens no other stream for that."""
    me, other = holder_of("lease", PRINCIPAL), holder_of("other", "user:2")

    async def told() -> list[list[str]]:
        watch = Watch("default", PRINCIPAL, {"lease": ("cart", True)})
        news = []
        for head in (Head(other, None), Head(other, me), Head("", me)):
            watch.look({"cart": head})
            news.append([kind for kind, _ in await watch.next(0.2)])
        return news

    assert asyncio.run(told()) == [["lost"], [], ["turn"]]


def test_who_finds_the_row_busy_and_not_the_lock_asks_again_soon() -> None:
    """Also a hidden tab at the head of the queue, which is told its turn once."""
    hidden = {"holder": None, "place": 0, "queued": True, "interval": 5.0}
    assert refusal_of(Waiting(**hidden))["retry_after"] == 5.0
    assert refusal_of(Waiting(**hidden, crowded=True))["retry_after"] == HEAD
