"""Ids that clients choose, texts as they can be stored, and times in microseconds. No Django."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime

# Ids that clients choose. A UUID with or without hyphens fits; so does token_urlsafe(16).
ID = re.compile(r"[A-Za-z0-9_-]{8,64}", re.ASCII)
LONGEST_PRINCIPAL = LONGEST_LABEL = 255


def check_id(what: str, text: str) -> str:
    """Return ``text`` if it can be the id of a lease or tab. ValueError otherwise."""
    if not isinstance(text, str) or not ID.fullmatch(text):
        raise ValueError(f"{what} must be 8 to 64 letters, digits, hyphens or underscores.")
    return text


def exact(principal: str) -> str:
    """A principal as each database compares it: ASCII without a blank at the end, at most 255 characters.

    Others become a digest, "user:Ä" for example: some databases take "ä" for "Ä", and "a " for "a".
    """
    plain = principal.isascii() and principal.isprintable() and not principal.endswith(" ")
    if plain and len(principal) <= LONGEST_PRINCIPAL:
        return principal
    kind = principal.partition(":")[0]
    digest = hashlib.sha256(principal.encode(errors="surrogatepass")).hexdigest()[:32]
    return f"{kind if kind in ('user', 'browser', 'session', 'code') else 'digest'}:{digest}"


def shown(label: str) -> str:
    """A label as it can be stored: PostgreSQL refuses NUL, and no database has half of a surrogate pair."""
    return label.replace("\0", "").encode(errors="replace").decode()[:LONGEST_LABEL]


def micros(seconds: float) -> int:
    return int(seconds * 1_000_000)


def moment(value: int) -> datetime:
    """The time that is ``value`` microseconds after 1970."""
    return datetime.fromtimestamp(value / 1_000_000, UTC)
