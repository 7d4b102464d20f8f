"""RESP3 as the model and the proxy of the tests read it: https://redis.io/docs/latest/develop/reference/protocol-spec/."""

from __future__ import annotations

from typing import Any


def parse(data: bytes, at: int) -> tuple[Any, int]:
    """The command that begins at ``at``, as a list of its words, and where the next one begins."""
    end = data.index(b"\r\n", at)
    size, rest = int(data[at + 1 : end]), end + 2
    if data[at : at + 1] == b"$":
        return data[rest : rest + size], rest + size + 2
    words = []
    for _ in range(size):
        word, rest = parse(data, rest)
        words.append(word)
    return words, rest
