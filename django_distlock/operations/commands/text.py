"""How text fits a terminal."""

from __future__ import annotations

import unicodedata

from django_distlock.concurrency.text import ELLIPSIS


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
