"""Names and holders as columns store them, in ASCII."""

from __future__ import annotations

import json

# The table of the names behind hashed keys.
NAMES_TABLE = "django_distlock_name"
# Characters of a narrow column.
SHORT = 255


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
