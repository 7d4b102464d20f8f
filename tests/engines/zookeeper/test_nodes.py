"""The queue of one lock: order, turns, and what a node says. Nothing here asks a server."""

from __future__ import annotations

import pytest

from django_distlock.backends.zookeeper.nodes import NodeData, Standing, described, parse, queue, turn
from django_distlock.keys import LockKey
from django_distlock.records import Claim

KEY = LockKey("zk", "na\ud800me", b"\0" * 32)


def name(sequence: int, mode: str = "x") -> str:
    return f"{sequence % 2**32:032x}-{mode}-{sequence:010d}"


def line(*modes: str) -> list[str]:
    return [name(sequence, mode) for sequence, mode in enumerate(modes)]


def test_what_is_not_ours_is_left_out() -> None:
    for foreign in ("", "lock-0000000001", name(1)[1:], name(1) + "0", name(1, "n0"), name(1, "y")):
        assert parse(foreign) is None
        assert [node.sequence for node in queue([foreign, name(3)])] == [3]


@pytest.mark.parametrize("first", [0, 2**31 - 3, -3])
def test_r4_the_order_goes_on_where_the_counter_of_32_bits_begins_again(first: int) -> None:
    """ZooKeeper's sequence is a signed int: sorted as numbers or as text the newest would come first."""
    sequences = [(first + step + 2**31) % 2**32 - 2**31 for step in range(6)]
    names = [name(sequence) for sequence in sequences]
    assert [node.sequence for node in queue(reversed(names))] == sequences


@pytest.mark.parametrize(
    ("modes", "turns"),
    [("xxx", [None, 0, 1]), ("sss", [None, None, None]), ("sxssx", [None, 0, 1, 1, 3])],
)
def test_r4_who_waits_for_whom(modes: str, turns: list[int | None]) -> None:
    """A reader waits for the last writer ahead of it; a writer for the contender ahead of it."""
    nodes = queue(line(*modes))
    expected = [Standing(True) if each is None else Standing(False, nodes[each].name) for each in turns]
    assert [turn(nodes, place) for place in range(len(nodes))] == expected


def test_r4_of_a_semaphores_waiters_only_the_first_looks_at_all() -> None:
    nodes = queue(line(*["n2"] * 5))
    assert [turn(nodes, place) for place in range(5)] == [
        Standing(True),
        Standing(True),
        Standing(False),
        Standing(False, nodes[2].name),
        Standing(False, nodes[3].name),
    ]


def test_what_a_node_says_comes_back_and_corrupt_data_is_a_holder_that_is_not_known() -> None:
    (node,) = queue([name(1)])
    info = described("zk", "ab", node, NodeData().of(Claim(key=KEY), 1e9), 17, 3)
    assert (info.name, info.fence, info.waiters, info.key) == (KEY.name, 17, 3, "ab")
    for data in (b"", b"\xff", b"[]", b"null", b'{"name": 1, "holder": [], "since": 1e300}', b"[" * 9999):
        info = described("zk", "ab", node, data, 17, 0)
        assert (info.name, info.holder, info.acquired_at, info.fence) == (None, None, None, 17)
