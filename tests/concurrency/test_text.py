"""Text for logs, terminals and messages: one harmless line, also with control characters in names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_distlock.concurrency.text import one_line
from django_distlock.exceptions import BackendUnavailable
from django_distlock.keys import LockKey

HOSTILE = "a\r\nINFO all is well\x1b[2J\u202egnp.exe\u2028\x00\x85\ud800"


def test_ordinary_text_stays_as_it_is() -> None:
    assert one_line("Zürich: 7 € ok") == "Zürich: 7 € ok"


def test_what_could_do_harm_is_written_as_an_escape() -> None:
    assert one_line(HOSTILE) == r"a\r\nINFO all is well\x1b[2J\u202egnp.exe\u2028\x00\x85\ud800"
    assert one_line(BackendUnavailable(HOSTILE)) == str(BackendUnavailable(HOSTILE)) == one_line(HOSTILE)


def test_what_is_long_is_cut() -> None:
    assert one_line("x" * 5, 5) == "x" * 5
    assert one_line("x\n" * 5, 5) == r"x\nx\nx…"


@given(st.text(st.characters()))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    assert one_line(text).isprintable()
    assert repr(LockKey("default", text, b"")).isprintable()


@pytest.mark.parametrize("value", [None, 3, ValueError("x\ny")])
def test_any_value(value: object) -> None:
    assert one_line(value).isprintable()
