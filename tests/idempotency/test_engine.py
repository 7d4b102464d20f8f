"""The decisions alone, over many values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from django_distlock.idempotency import decisions
from django_distlock.idempotency.conf import Options
from django_distlock.idempotency.decisions import BadKey
from django_distlock.idempotency.http.requests import FORM_TYPES, body_of

if TYPE_CHECKING:
    import random

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.text())
def test_a_header_is_a_key_or_an_error(raw: str) -> None:
    try:
        key = decisions.parse_header(raw)
    except BadKey:
        pass
    else:
        assert 1 <= len(key) <= 255
        assert all("!" <= character <= "~" for character in key)


@given(st.lists(st.text(), min_size=5, max_size=5), st.lists(st.text(), min_size=5, max_size=5))
def test_scopes_meet_only_if_everything_is_the_same(first: list[str], second: list[str]) -> None:
    a, b = (decisions.scope_of("site", *parts) for parts in (first, second))
    assert (a == b) == (first == second)
    assert decisions.scope_of("other site", *first) != a
    assert len(a) == 64


@given(st.dictionaries(st.text(), json_values, max_size=5), st.randoms(use_true_random=False))
def test_json_is_the_same_in_any_order(value: dict[str, Any], chance: random.Random) -> None:
    items = list(value.items())
    chance.shuffle(items)
    assert decisions.json_body(json.dumps(value).encode()) == decisions.json_body(
        json.dumps(dict(items), indent=2).encode()
    )


def compared(fields: dict[str, list[str]]) -> bytes:
    request = RequestFactory().post("/", urlencode(fields, doseq=True), content_type=FORM_TYPES[0])
    return b"".join(body_of(request, Options()))


@given(st.dictionaries(st.text("ab&=é"), st.lists(st.text("ab&=é"), min_size=1, max_size=3), max_size=4))
def test_forms_are_the_same_in_any_order_of_fields_but_not_of_values(fields: dict[str, list[str]]) -> None:
    turned = dict(reversed(fields.items()))
    assert compared(fields) == compared(turned)
    backwards = {name: values[::-1] for name, values in fields.items()}
    assert (compared(backwards) == compared(fields)) == (backwards == fields)


def test_what_one_parser_takes_for_the_same_another_does_not() -> None:
    """A view may read its numbers as Decimal, and the first of two members of one name. NaN, which Python takes,
    distinguishes a number of JSON from a string."""
    for first, second in (
        ('{"amount": 100000000000000000.01}', '{"amount": 100000000000000000.02}'),
        ('{"amount": 1e400}', '{"amount": 2e400}'),
        ('{"amount": 1, "amount": 2}', '{"amount": 2}'),
        ('{"amount": 1.5}', '{"amount": "1.5"}'),
        ('{"amount": 1.5}', '{"amount": [NaN, "1.5"]}'),
        ("[1.5]", '[[NaN,"1.5"]]'),
    ):
        assert decisions.json_body(first.encode()) != decisions.json_body(second.encode())
    deep = b"[" * 100_000
    assert decisions.json_body(deep) == decisions.RAW + deep


def test_the_smallest_and_the_largest() -> None:
    assert decisions.keyed("k", "p", "a", "bc") != decisions.keyed("k", "p", "ab", "c"), "parts do not run together"
    assert all(0 < decisions.pause(attempt) <= 0.25 for attempt in range(40))
    with pytest.raises(BadKey, match="longer"):
        decisions.parse_header("x" * 10_000_000)
