"""Queries of held locks mean the same on all engines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from django_distlock.backends.query import ORDERS, LockQuery, chosen, merged, order_key
from django_distlock.records import LockInfo

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FOUND: list[tuple[dict[str, Any], str]] = [
    ({}, "1234"),
    ({"text": "ORDER"}, "12"),
    ({"text": "3"}, "3"),  # the key
    ({"text": "straße"}, "4"),
    ({"keys": frozenset({"2", "9"})}, "2"),
    ({"shared": True}, "2"),
    ({"awaited": True}, "1"),
    ({"awaited": False}, "234"),
    ({"older": 10.0}, "1"),
    ({"kind": "row"}, "3"),
    ({"kind": "named", "shared": False}, "14"),
    ({"start": 1, "stop": 3}, "23"),
    ({"start": 9}, ""),
    ({"order": ("waiters", "name")}, "3124"),  # what is not known comes last
    ({"order": ("-waiters", "name")}, "1324"),
]


def test_what_is_found() -> None:
    info = partial(LockInfo, backend="a")
    infos = [
        info(key="1", name="order:7", waiters=2, acquired_at=NOW - timedelta(seconds=60)),
        info(key="2", name="Order:8", shared=True, acquired_at=NOW - timedelta(seconds=9)),
        info(key="3", details={"kind": "row"}, waiters=0),
        info(key="4", name="STRASSE straße"),
    ]
    for query, expected in FOUND:
        found = chosen(infos, LockQuery(**query), NOW)
        assert "".join(each.key for each in found.locks) == expected, query
        assert found.total == 4
        if "start" not in query:
            assert found.matching == len(expected)


INFOS = st.builds(
    LockInfo,
    backend=st.sampled_from("ab"),
    key=st.sampled_from("12345"),
    name=st.none() | st.sampled_from(["x", "X", "é", '"q"', ""]),
    shared=st.booleans(),
    holder=st.none() | st.sampled_from(["h", "ü"]),
    acquired_at=st.none() | st.just(NOW) | st.just(NOW + timedelta(1)),
    waiters=st.none() | st.integers(0, 2),
)
FIELDS = st.sampled_from([sign + field for sign in ("", "-") for field in ORDERS])


@given(st.lists(INFOS, max_size=12), st.lists(FIELDS, min_size=1, max_size=3), st.integers(0, 6), st.integers(0, 6))
def test_what_several_engines_give_is_put_together_as_if_it_were_one(
    infos: list[LockInfo], order: list[str], start: int, more: int
) -> None:
    """Each has cut behind the page, and none before it."""
    query = LockQuery(order=tuple(order), start=start, stop=start + more)
    cut = LockQuery(order=query.order, stop=query.stop)
    parts = [chosen([each for each in infos if each.backend == alias], cut, NOW).locks for alias in "ab"]
    key = order_key(query.order)
    whole = [key(each) for each in sorted(infos, key=key)][start : start + more]
    assert [key(each) for each in merged(parts, query)] == whole
