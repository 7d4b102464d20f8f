"""Errors, text and keys: R6, busy, lost and unreachable are different errors, and each says something even when nobody
gave it words; text for logs is one harmless line; R3 without an engine, from a name to what is sent."""

from __future__ import annotations

import pickle
import re

from hypothesis import assume, example, given
from hypothesis import strategies as st

from django_distlock import exceptions
from django_distlock.concurrency.text import one_line
from django_distlock.exceptions import (
    BackendUnavailable,
    DeadlockDetected,
    DistlockError,
    LockLost,
    LockNotAcquired,
    LockNotHeld,
    LockTimeout,
    UnsupportedOperation,
)
from django_distlock.keys import MAX_NAME_LENGTH, MAX_TEXT_LENGTH, LockKey, derive_key, validate_name

TREE: dict[type[Exception], type[Exception]] = {
    DistlockError: Exception,
    LockNotAcquired: DistlockError,
    LockTimeout: LockNotAcquired,
    LockLost: DistlockError,
    LockNotHeld: DistlockError,
    DeadlockDetected: DistlockError,
    UnsupportedOperation: DistlockError,
    BackendUnavailable: DistlockError,
}


def test_r6_the_tree_has_these_classes_and_no_others() -> None:
    found = {value for value in vars(exceptions).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert {kind: kind.__bases__ for kind in found} == {kind: (parent,) for kind, parent in TREE.items()}


def test_r6_the_message_without_and_with_words() -> None:
    """Also in another process: pools and task queues pickle what a worker raised."""
    for kind in TREE:
        assert str(kind()) == str(kind(None)) != ""
        copy = pickle.loads(pickle.dumps(kind("in other words")))  # noqa: S301 - our own bytes
        assert (type(copy), str(copy), copy.args) == (kind, "in other words", ("in other words",))


HOSTILE = "a\r\nINFO all is well\x1b[2J\u202egnp.exe\u2028\x00\x85\ud800"


def test_what_could_do_harm_in_a_log_is_written_as_an_escape() -> None:
    assert one_line(HOSTILE) == r"a\r\nINFO all is well\x1b[2J\u202egnp.exe\u2028\x00\x85\ud800"
    assert one_line(BackendUnavailable(HOSTILE)) == str(BackendUnavailable(HOSTILE)) == one_line(HOSTILE)
    assert [one_line(value) for value in ("Zürich: 7 € ok", None, 3)] == ["Zürich: 7 € ok", "None", "3"]
    assert one_line("x" * 5, 5) == "x" * 5
    assert one_line("x\n" * 5, 5) == r"x\nx\nx…"


@given(st.text(st.characters()))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    assert one_line(text).isprintable()
    assert repr(LockKey("default", text, b"")).isprintable()


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
