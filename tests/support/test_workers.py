"""The order in which the processes of a run get the tests."""

from __future__ import annotations

import os

import pytest

from tests.support.workers import WORKER, halves, spread


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_item_once_and_groups_together_in_one_workers_piece(workers: int) -> None:
    items = list(range(90))
    groups = [[3, 50, 89], [4, 0], [60, 61, 20]]
    found = spread(items, groups, workers)
    assert sorted(found) == items
    if workers == 1:
        assert found == items
        return
    piece = len(items) // workers
    for group in groups:
        at = [found.index(item) for item in group]
        assert at == list(range(at[0], at[0] + len(group)))
        assert {place // piece for place in at} & {0} == set(), "the first one has those that must be alone"
        assert len({place // piece for place in at}) == 1
    others = [item for item in found if not any(item in group for group in groups)]
    assert others == sorted(others)


def test_tests_with_a_browser_are_what_the_last_two_begin_with() -> None:
    items = list(range(92))
    first = halves([[7, 50, 91], [4, 0, 33, 60]])
    assert first == [[7, 4, 0], [50, 91, 33, 60]], "half of each package"
    found = spread(items, [[3, 40], [61, 20]], 4, first)
    assert sorted(found) == items
    piece = len(items) // 4
    for number, share in ((2, first[0]), (3, first[1])):
        assert found[number * piece : number * piece + len(share)] == share


def test_a_worker_has_a_session_of_its_own() -> None:
    assert not WORKER or os.getsid(0) == os.getpid()


def test_few_items() -> None:
    assert sorted(spread([1, 2], [[2], [1]], 3)) == [1, 2]
