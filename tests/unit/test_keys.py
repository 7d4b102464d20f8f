"""R3 without an engine: from a name to what is sent."""

from __future__ import annotations

import re

from hypothesis import assume, example, given
from hypothesis import strategies as st

from django_distlock.keys import MAX_NAME_LENGTH, MAX_TEXT_LENGTH, derive_key, validate_name

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
NAMES = st.text(st.characters(exclude_categories=()), min_size=1, max_size=MAX_NAME_LENGTH)
SITE = "site"


@given(NAMES)
@example("\ud800")
@example("\x00")
@example("x" * MAX_NAME_LENGTH)
@example("😀" * MAX_NAME_LENGTH)
def test_r3_every_form_fits_every_engine(name: str) -> None:
    key = derive_key(SITE, "default", validate_name(name))
    assert -(2**63) <= key.number < 2**63
    assert re.fullmatch(r"[a-z0-9-]{32,60}", key.text)
    assert len(key.text) <= MAX_TEXT_LENGTH
    assert re.fullmatch(r"[0-9a-f]{64}", key.path)


@given(NAMES, NAMES)
def test_r3_different_names_differ_in_every_form(first: str, second: str) -> None:
    assume(first != second)
    one, other = derive_key(SITE, "a", first), derive_key(SITE, "a", second)
    assert one != other
    assert len({one.number, other.number}) == len({one.text, other.text}) == len({one.path, other.path}) == 2
    # MySQL compares without case; 160 bits of the hash stand in the tail, whatever the slug looks like
    assert one.text[-32:] != other.text[-32:]


def test_r3_numbers_use_all_64_bits() -> None:
    """Ten thousand names would hardly collide in 40 bits, and surely in 16."""
    numbers = [derive_key("site", "alias", f"name {number}").number for number in range(10_000)]
    assert len(set(numbers)) == len(numbers)
    for bit in range(64):
        assert 4000 < sum(number >> bit & 1 for number in numbers) < 6000


@given(st.lists(ANY_TEXT, min_size=2, max_size=5), st.lists(ANY_TEXT, min_size=2, max_size=5))
@example(["a", "b:c"], ["a:b", "c"])
@example(["a", "bc"], ["ab", "c"])
@example(["a", "b", ""], ["a", "b"])
@example(["a", "\ud83d\ude00"], ["a", "😀"])
def test_parts_never_run_into_each_other(first: list[str], second: list[str]) -> None:
    one, other = derive_key(SITE, *first), derive_key(SITE, *second)
    assert (one == other) == (hash(one) == hash(other)) == (first == second)


def test_keys_are_the_same_in_every_process_and_version() -> None:
    """Two releases that run side by side exclude each other: the derivation must not change."""
    key = derive_key("site-key", "default", "register", "semaphore", "0")
    assert key.path == "3694bc91f02986eefee8c98bb2a6dd043cdf5cce4c4fdb57ae9125698b950af9"


@given(NAMES, ANY_TEXT, ANY_TEXT)
@example("b", "a", "")
def test_a_namespace_is_a_part_of_every_form_and_none_is_none(name: str, first: str, second: str) -> None:
    assume(first != second)
    one, other = (derive_key(SITE, "a", name, namespace=namespace) for namespace in (first, second))
    assert len({one.number, other.number}) == len({one.text, other.text}) == len({one.path, other.path}) == 2
    assert derive_key(SITE, "a", name, namespace="") == derive_key(SITE, "a", name)
    # neither a longer name nor a name with parts is taken for it
    for alike in ((one.full_name,), (first, name), (name, first)):
        assert not first or derive_key(SITE, "a", *alike) != one
