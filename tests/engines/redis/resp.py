"""RESP3 as a server and a proxy of the tests read it: https://redis.io/docs/latest/develop/reference/protocol-spec/."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from django_distlock.backends.redis.connection import PENDING, Push

_LINE = b"\r\n"


class Garbled(ValueError):
    """This is not RESP."""


def parse(data: bytes, at: int) -> tuple[Any, int]:
    """The value that begins at ``at``, and where the next one begins; PENDING if it is not all there.

    Strings stay bytes; errors become ``ResponseError`` values, pushes ``Push``; maps dicts. Garbled if it makes
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
            return ResponseError(body.decode("utf-8", "replace")), rest
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
        return ResponseError(body.decode("utf-8", "replace")), at + size + 2
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
