"""The Lua scripts of a lock, and the requests that run them.

Each operation is one script, and therefore atomic. ``scripts/keys.lua`` describes the four keys of a lock. They share
one hash slot (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/).

A waiter is called on the channel of its process. PUBSUB NUMSUB tells whether that process listens at *this* server, so
a process that is gone is skipped at once, without a heartbeat. The reply of PUBLISH is not used: Redis forwards a
message to its replicas and over the bus of a cluster, and counts patterns too.

All times are the server's. Scripts replicate their effects, so they may read the clock; SET with GET and PX needs Redis
6.2. Each script begins with the code that most calls need, before it defines the rest.
"""

from __future__ import annotations

import hashlib
import math
import re
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from django_distlock.records import Claim

# How long the fencing token of a lock without a holder is kept, and the tickets of a queue that no waiter reads; ms.
# The clock alone keeps the fence rising afterwards.
KEPT: Final = 86_400_000
# The largest limit of a semaphore: Lua prints it in full.
MAX_LIMIT = 2**31

Keys = tuple[bytes, bytes, bytes, bytes]
PREFIX: Final = b"distlock:{"
HELD: Final = b"}:held"


class Script:
    """A Lua script, sent by its hash, and as a whole to a server that does not know it."""

    def __init__(self, name: str) -> None:
        self.text = _text(files(__package__) / "scripts", f"{name}.lua").replace("KEPT", str(KEPT))
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def _text(folder: Traversable, name: str) -> str:
    """A file with the files that it includes, without the lines that are comments."""
    text = (folder / name).read_text("utf-8")
    text = re.sub(r"^-- include (.+)\n", lambda match: _text(folder, match[1]), text, flags=re.MULTILINE)
    return re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)


ACQUIRE, RELEASE, LEAVE, EXTEND, HOLDS, BREAK, LOOK = map(
    Script, ("acquire", "release", "leave", "extend", "holds", "break", "look")
)


class Request:
    """One script for one lock. ``packed``: as it goes over the wire. ``until``: what it ends has ended by
    itself at this monotonic time."""

    __slots__ = ("args", "keys", "packed", "script", "until")

    def __init__(self, script: Script, keys: Keys, *args: bytes | str | int, until: float = math.inf) -> None:
        self.until = until
        self.script, self.keys, self.args = script, keys, args
        self.packed = _head("EVALSHA", script.sha, keys, len(args)) + _words(args)

    def understands(self, reply: object) -> bool:
        """Can the script have returned this? One number; of ACQUIRE two for a grant, and five if the lock is busy."""
        if self.script is not ACQUIRE:
            return type(reply) is int
        return type(reply) is list and {*map(type, reply)} == {int} and len(reply) == (2 if reply[0] else 5)

    @property
    def whole(self) -> bytes:
        """For a server that does not know the script."""
        return _head("EVAL", self.script.text, self.keys, len(self.args)) + _words(self.args)


def _words(words: tuple[bytes | str | int, ...]) -> bytes:
    packed = b""
    for word in words:
        raw = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogatepass")
        packed += b"$%d\r\n%b\r\n" % (len(raw), raw)
    return packed


@lru_cache(256)
def _head(command: str, script: str, keys: Keys, args: int) -> bytes:
    """What every call of one script for one lock begins with."""
    return b"*%d\r\n" % (3 + len(keys) + args) + _words((command, script, len(keys), *keys))


@lru_cache(256)
def keys_of(text: bytes, prefix: bytes = PREFIX) -> Keys:
    """The keys of one lock, in the order in which the scripts expect them."""
    start = prefix + text
    return (start + HELD, start + b"}:queue", start + b"}:waiters", start + b"}:fence")


def holder_of(claim: Claim, number: int = 0) -> bytes:
    """What the scripts call the holder or waiter of ``claim``. ``number``: how often it has changed its name."""
    mode = "s" if claim.shared else "n" if claim.limit else "x"
    return f"{mode}{claim.token}.{number}".encode("ascii") if number else (mode + claim.token).encode("ascii")


def milliseconds(ttl: float | None) -> int:
    """At least one, at most a century."""
    return max(1, int(min(ttl or 0.0, 3.2e9) * 1000))
