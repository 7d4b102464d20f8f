"""Lua scripts, and how they are sent."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

from .connection import pack, pack_words, reply_code

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.resources.abc import Traversable


class Script:
    """A Lua script. It is sent by its hash, and as a whole to a server that answers NOSCRIPT: it was restarted."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def by_hash(self, keys: tuple[bytes, ...], *args: bytes | str | int) -> bytes:
        """EVALSHA, packed."""
        return _head(self.sha, keys, len(args)) + pack_words(*args)

    def whole(self, keys: tuple[bytes, ...], *args: bytes | str | int) -> bytes:
        """EVAL, packed; the server keeps the script."""
        return pack("EVAL", self.text, len(keys), *keys, *args)


@lru_cache(256)
def _head(sha: str, keys: tuple[bytes, ...], args: int) -> bytes:
    """What every EVALSHA of one script for one lock begins with."""
    return b"*%d\r\n" % (3 + len(keys) + args) + pack_words("EVALSHA", sha, len(keys), *keys)


def unknown_script(reply: object) -> bool:
    """Does the server not know the script of :meth:`Script.by_hash`? Then nothing was done."""
    return reply_code(reply) == "NOSCRIPT"


def _text(folder: Traversable, name: str) -> str:
    """A file with the files that it includes, without the lines that are comments."""
    text = (folder / name).read_text("utf-8")
    text = re.sub(r"^-- include (.+)\n", lambda match: _text(folder, match[1]), text, flags=re.MULTILINE)
    return re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)


def scripts(package: str, constants: Mapping[str, object], *names: str) -> Iterator[Script]:
    """The scripts of a package, from the files in its folder ``scripts``. Each word in ``constants`` stands for its
    value."""
    folder = files(package) / "scripts"
    words = re.compile(rf"\b({'|'.join(constants)})\b")
    for name in names:
        yield Script(words.sub(lambda match: str(constants[match[1]]), _text(folder, f"{name}.lua")))
