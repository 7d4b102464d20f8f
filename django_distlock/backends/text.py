"""Names and holders as columns keep them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Characters that a narrow column takes.
SHORT = 255
# So many of the other locks of a session are named.
MOST_NAMED = 10


def printable(text: str) -> str:
    """``text`` itself if it is plain ASCII, else its JSON form: databases differ in what else they can keep."""
    if text.isascii() and text.isprintable() and text[:1] != '"':
        return text
    return json.dumps(text)


def readable(text: str) -> str:
    """The inverse of :func:`printable`; what somebody else wrote into the table is shown as it is."""
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


class LockTable:
    """Which session holds which locks: what is lost with one of them, if the session is ended for it."""

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
    """The names of the ``count`` locks that a session holds, without that of ``key``, as far as there is room; empty if
    there are no others. ``held`` are keys and names of some, one more than are named."""
    names = [name for each, name in held if each != key][:MOST_NAMED]
    more = count - 1 - len(names)
    return ", ".join([*names, f"{more} more"] if more > 0 else names)
