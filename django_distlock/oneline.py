"""Text that may hold anything, written so that a log, a terminal and a page show one harmless line."""

from __future__ import annotations


def one_line(value: object) -> str:
    """``str(value)`` with all that is not printable as an escape: line ends, ESC, bidi controls, surrogates.

    What ``repr()`` does for a name, without the quotes.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
