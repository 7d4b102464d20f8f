"""Which held locks the list shows, and in what order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

from django.http import QueryDict
from hypothesis import given
from hypothesis import strategies as st

from django_distlock.operations.admin.listing import COLUMNS, ordered, selected
from django_distlock.records import LockInfo

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FOUND = [
    ("", "1234"),
    ("q=ORDER", "12"),
    ("q=3", "3"),  # the key
    ("q=straße", "4"),
    ("mode=shared", "2"),
    ("waiters=yes", "1"),
    ("waiters=no", "234"),
    ("older=10", "1"),
    ("kind=row", "3"),
    ("kind=named&mode=exclusive", "14"),
    ("o=waiters.name", "3124"),  # what is not known comes last
    ("o=-waiters.name", "1324"),
    ("o=-held_since", "1234"),  # the oldest first
    ("o=held_since", "2134"),
]


def test_what_is_found() -> None:
    info = partial(LockInfo, backend="a")
    infos = [
        info(key="4", name="STRASSE straße"),
        info(key="1", name="order:7", waiters=2, acquired_at=NOW - timedelta(seconds=60)),
        info(key="3", details={"kind": "row"}, waiters=0),
        info(key="2", name="Order:8", shared=True, acquired_at=NOW - timedelta(seconds=9)),
    ]
    for query, expected in FOUND:
        params = QueryDict(query)
        order = [part for part in params.get("o", "").split(".") if part]
        assert "".join(each.key for each in ordered(selected(infos, params, NOW), order)) == expected, query


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
VALUES: dict[str, Any] = {name: value_of for name, (_title, value_of) in COLUMNS.items() if value_of is not None}
FIELDS = st.sampled_from([sign + name for sign in ("", "-") for name in VALUES])


def in_order(one: LockInfo, other: LockInfo, order: list[str]) -> bool:
    """May ``one`` stand before ``other``? By the first column in which they differ; what is unknown is last."""
    for field in order:
        values = [VALUES[field.removeprefix("-")](info) for info in (one, other)]
        if values[0] != values[1]:
            return values[0] is not None and (values[1] is None or (values[0] < values[1]) != field.startswith("-"))
    return (one.backend, one.key) <= (other.backend, other.key)


@given(st.lists(INFOS, max_size=12), st.lists(FIELDS, min_size=1, max_size=3))
def test_the_first_field_counts_most_and_unknown_values_are_last(infos: list[LockInfo], order: list[str]) -> None:
    found = ordered(infos, order)
    assert sorted(map(id, found)) == sorted(map(id, infos))
    assert all(in_order(one, other, order) for one, other in pairwise(found))
