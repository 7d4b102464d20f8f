"""Names and holders as columns store them, in ASCII."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# The table of the names behind hashed keys.
NAMES_TABLE = "django_distlock_name"
# Characters of a narrow column.
SHORT = 255
# Other locks of a session that a list names.
MOST_NAMED = 10


def printable(text: str) -> str:
    """``text`` itself if it is plain ASCII, else as JSON: not every database can store other characters."""
    if text.isascii() and text.isprintable() and text[:1] != '"':
        return text
    return json.dumps(text)


def readable(text: str) -> str:
    """The inverse of :func:`printable`; text that another program wrote stays as it is."""
    if text[:1] == '"':
        try:
            value = json.loads(text)
        except ValueError:
            return text
        if isinstance(value, str):
            return value
    return text


def short(text: str) -> str:
    """:func:`printable` of as much as the narrow columns take."""
    made = printable(text)
    while len(made) > SHORT:  # a character in JSON is up to twelve
        text = text[: min(SHORT, len(text) - 1)]
        made = printable(text)
    return made


class SessionContents:
    """The locks of each session: breaking one of them ends the session, and the others are lost with it."""

    def __init__(self) -> None:
        self._named: dict[str | None, dict[str, str]] = {}
        self._count: dict[str | None, int] = {}

    def add(self, session: str | None, key: str, name: str | None) -> None:
        self._count[session] = self._count.get(session, 0) + 1
        named = self._named.setdefault(session, {})
        if len(named) <= MOST_NAMED:
            named[key] = name or key

    def others(self, session: str | None, key: str) -> str:
        """:func:`others_of` what ``session`` holds."""
        return others_of(self._named[session].items(), self._count[session], key)


def others_of(held: Iterable[tuple[str, str]], count: int, key: str) -> str:
    """The names of up to MOST_NAMED of the ``count`` locks of a session, without that of ``key``; empty if there are no
    others. ``held`` has the keys and names of one more than that."""
    names = [name for each, name in held if each != key][:MOST_NAMED]
    more = count - 1 - len(names)
    return ", ".join([*names, f"{more} more"] if more > 0 else names)
