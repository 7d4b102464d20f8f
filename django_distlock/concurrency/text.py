"""Turn untrusted text into one harmless line for logs, terminals and pages."""

from __future__ import annotations

ELLIPSIS = "…"


def one_line(value: object, longest: int | None = None) -> str:
    """``str(value)`` with all that is not printable as an escape: line ends, ESC, bidi controls, surrogates.

    The escapes are those of ``repr()``. A text of more than ``longest`` characters is cut.
    """
    text = str(value)
    if longest is not None and len(text) > longest:
        return one_line(text[:longest]) + ELLIPSIS
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
