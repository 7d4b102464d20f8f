"""R11: whatever ends the transaction, the lock taken inside it is free then, not before, and once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.manager.transactions import rows, ways
from tests.manager.transactions.world import SOON
from tests.support.timing import within

if TYPE_CHECKING:
    from tests.manager.transactions.world import World


@pytest.mark.parametrize("way", ways.WAYS, ids=lambda way: way.__name__)
def test_r11_rival_is_out_before_the_end_and_in_after_it(world: World, way: ways.Way) -> None:
    if way is ways.failed_commit and world.alias == "mariadb":
        way = ways.killed  # no constraint is looked at by its COMMIT; a COMMIT that fails there has lost the server
    seen = way(world)
    world.check_rival_came_in(seen)
    world.check_returned_once(transaction_scope=world.using == "postgres" and way not in ways.SESSION_SCOPE)
    world.check_rival_keeps_it()


@pytest.mark.tier2
@pytest.mark.alone  # the other one is content with a second
@pytest.mark.parametrize("way", [ways.commit, ways.exception], ids=lambda way: way.__name__)
def test_r11_rival_is_in_within_50_ms(one_world: World, way: ways.Way) -> None:
    """100 transactions in a row, with a rival that waits for the end of each."""
    world = one_world
    late = []
    for round_ in range(100):
        seen = way(world)
        world.check_rival_came_in(seen * (round_ + 1))
        late.append(world.late)
        world.again()
    assert rows.count(world.alias, world.name) in (0, 100)
    late.sort()
    within(late[98], SOON, what=f"p50 {late[49] * 1000:.1f} ms, worst {late[99] * 1000:.1f} ms, p99")
