"""RESP3 as the model and the proxy of the tests read it: https://redis.io/docs/latest/develop/reference/protocol-spec/."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from django_distlock.backends.redis.connection import PENDING, Push


def parse(data: bytes, at: int) -> tuple[Any, int]:
    """The value that begins at ``at``, and where the next one begins; PENDING if it is not all there.

    Strings stay bytes; errors become ``ResponseError`` values, pushes ``Push``; of a map its keys and values in turn.
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        return PENDING, at
    kind, body, rest = data[at : at + 1], data[at + 1 : end], end + 2
    if kind in b"$=!":
        after = rest + int(body) + 2
        return (data[rest : after - 2], after) if len(data) >= after else (PENDING, at)
    if kind in b"*~>%":
        values = Push() if kind == b">" else []
        for _ in range(int(body) * (2 if kind == b"%" else 1)):
            value, rest = parse(data, rest)
            if value is PENDING:
                return PENDING, at
            values.append(value)
        return values, rest
    plain = {b":": int, b"+": bytes, b"-": lambda text: ResponseError(text.decode()), b"_": lambda _: None}
    return plain[kind](body), rest
