"""Text that others wrote, for a terminal: nothing in it can steer the terminal or break a line."""

from __future__ import annotations

import unicodedata

ELLIPSIS = "…"


def visible(text: str) -> str:
    """``text`` with everything that does not print as a Python escape: control characters, ESC, line ends, marks that
    turn the direction of writing, lone surrogates."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else escaped(char) for char in text)


def escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def encodable(text: str, encoding: str | None) -> str:
    """What a terminal of that encoding can show, the rest as escapes."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def cells(text: str) -> int:
    """How many columns of a terminal ``text`` takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fitted(text: str, width: int) -> str:
    """``text`` in exactly ``width`` columns: filled up, or cut with an ellipsis."""
    size = cells(text)
    if size > width:
        kept, size = "", 0
        for char in text:
            if size + _cells(char) > width - 1:
                break
            kept, size = kept + char, size + _cells(char)
        text, size = kept + ELLIPSIS, size + 1
    return text + " " * (width - size)
