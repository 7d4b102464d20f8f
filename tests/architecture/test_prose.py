"""The docstrings and comments of the package are plain English, as far as a regular expression can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.paths import PACKAGE

from .prose import DIALECT, count

if TYPE_CHECKING:
    from pathlib import Path

MOST = 0.05


def test_at_most_one_text_in_twenty_has_a_word_of_the_dialect() -> None:
    """psycopg 3.3 and django.db 5.2 have 0.6 % together by the same counter: the bound leaves some room."""
    total, bad = count(sorted(PACKAGE.rglob("*.py")))
    assert total > 1000
    assert len(bad) <= MOST * total, "\n".join(bad)


@pytest.mark.parametrize(
    "text",
    [
        "Whoever asks has ``turn``, until leave; what is only told may be told by anybody at any time.",
        "What those leave behind who could not take leave: claims to be undone.",
        "Nobody has used it for long: nobody gets it any more.",
        "With one more, locks may not be had any more.",
        "The session has a thread of its own, which looks after it.",
        "Somebody else's lock, made anew meanwhile.",
        "Those who wait stand in line.",
    ],
)
def test_the_counter_sees_the_dialect(text: str) -> None:
    assert DIALECT.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "Base class of Lock, LockSet and Semaphore. Subclasses implement ``_flow``.",
        "A name is stored once two consecutive ticks have seen it: it is held for over a second, or used often.",
        "Deferred clean-up: undoes claims of interrupted callers once the server answers again.",
        "Retire the session after IDLE seconds without use.",
        "If one more node fails, no lock can be acquired.",
        "Return None if the lock stays busy for ``timeout`` seconds.",
        "Another process holds the lock; its own session keeps it.",
        "This module has history; it shows the holder and the waiters.",
    ],
)
def test_the_counter_leaves_plain_sentences_alone(text: str) -> None:
    assert not DIALECT.search(text)


def test_docstrings_and_runs_of_comments_are_counted(tmp_path: Path) -> None:
    """Code, strings and directives for tools are not."""
    source = tmp_path / "module.py"
    source.write_text(
        '"""Whoever asks."""\n\n'
        "# a run of comments\n# that somebody wrote\n"
        'MESSAGE = "nobody"\n'
        "nobody = 1  # noqa: somebody\n\n\n"
        "def f() -> None:\n"
        '    """Return nothing."""\n'
        "    pass  # anew\n"
    )
    total, bad = count([source])
    assert total == 4
    assert [entry.removeprefix(f"{tmp_path}/").split(" ", 1)[0] for entry in bad] == [
        "module.py:1:",
        "module.py:3:",
        "module.py:11:",
    ]
