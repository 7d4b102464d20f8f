"""RESP3, as far as a lock needs it: https://redis.io/docs/latest/develop/reference/protocol-spec/.

Standard library only, no I/O.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

_LINE = b"\r\n"


class _Pending:
    """There is no whole value yet."""

    def __repr__(self) -> str:
        return "PENDING"


PENDING: Final = _Pending()


class ReplyError(Exception):
    """What the server answers instead of a value; its first word is the ``code``."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


class Push(list[Any]):
    """Something the server says without having been asked: ``[b"message", channel, payload]``."""


class Garbled(ValueError):
    """This is not RESP."""


def pack(*parts: bytes | str | int) -> bytes:
    """One command as it goes over the wire. str is sent as UTF-8."""
    chunks = [b"*%d\r\n" % len(parts)]
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        chunks.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(chunks)


class Script:
    """A Lua script: sent by its hash, and whole to a server that answers NOSCRIPT (it was restarted, or flushed)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def by_hash(self, keys: tuple[bytes, ...], *args: bytes | str | int) -> bytes:
        """EVALSHA, packed."""
        return pack("EVALSHA", self.sha, len(keys), *keys, *args)

    def whole(self, keys: tuple[bytes, ...], *args: bytes | str | int) -> bytes:
        """EVAL, packed; the server keeps the script."""
        return pack("EVAL", self.text, len(keys), *keys, *args)


def unknown_script(reply: object) -> bool:
    """Does the server not know the script of :meth:`Script.by_hash`? Then nothing was done."""
    return isinstance(reply, ReplyError) and reply.code == "NOSCRIPT"


def parse(data: bytes, at: int) -> tuple[Any, int]:
    """The value that begins at ``at``, and where the next one begins; PENDING if it is not all there.

    Strings stay bytes; errors become :class:`ReplyError` values, pushes :class:`Push`; maps dicts. Garbled if it makes
    no sense.
    """
    end = data.find(_LINE, at)
    if end < 0:
        return PENDING, at
    kind, body, rest = data[at : at + 1], data[at + 1 : end], end + 2
    try:
        if kind in b"$=!":
            return _bulk(kind, data, int(body), rest)
        if kind == b":":
            return int(body), rest
        if kind == b"+":
            return body, rest
        if kind == b"-":
            return ReplyError(body.decode("utf-8", "replace")), rest
        if kind in b"*~>%|":
            return _aggregate(kind, data, int(body), at, rest)
        if kind == b"_":
            return None, rest
        if kind == b"#":
            return body == b"t", rest
        if kind == b",":
            return float(body), rest
        if kind == b"(":
            return int(body), rest
    except ValueError as error:
        raise Garbled(f"Redis sent {data[at : at + 40]!r}.") from error
    raise Garbled(f"Redis sent {data[at : at + 40]!r}.")


def _bulk(kind: bytes, data: bytes, size: int, at: int) -> tuple[Any, int]:
    if size < 0:
        return None, at
    if len(data) < at + size + 2:
        return PENDING, at
    body = data[at : at + size]
    if kind == b"!":
        return ReplyError(body.decode("utf-8", "replace")), at + size + 2
    return body[4:] if kind == b"=" else body, at + size + 2


def _aggregate(kind: bytes, data: bytes, size: int, start: int, at: int) -> tuple[Any, int]:
    if size < 0:
        return None, at
    values = Push() if kind == b">" else []
    for _ in range(size * 2 if kind in b"%|" else size):
        value, at = parse(data, at)
        if value is PENDING:
            return PENDING, start
        values.append(value)
    if kind == b"|":  # attributes of the value that follows
        return parse(data, at)
    if kind == b"%":
        return dict(zip(values[::2], values[1::2], strict=True)), at
    return values, at
