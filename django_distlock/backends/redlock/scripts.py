"""What the nodes store, and the Lua scripts that change it.

A lock is one key with a TTL, ``redlock:{<key>}``. Its value is the *vote*, a space and the facts of the holder in JSON.
A vote is the claim's token with the number of the attempt. What takes back one attempt may be executed late, and never
removes a later one.
Waiters queue at one node: in a sorted set by the time of their arrival, and in a hash with the time at which each was
last seen, the channel on which it listens, and its facts. A script that frees the key there calls the first of them.
The queue only keeps order and saves requests: a majority of all nodes decides who has the lock.
"""

from __future__ import annotations

import re
from importlib.resources import files

from django_distlock.backends.redis.commands import Script
from django_distlock.records import MOST_WAITING

PREFIX = b"redlock:"
# A waiter that was called, or cannot be called, loses its turn if it does not ask within this time; milliseconds.
GRACE = 500
# The queue is forgotten if no waiter asks within this time; milliseconds. Waiters ask every few seconds.
KEPT = 15_000
# A refusal is -1, less the number of waiters ahead, less this for each millisecond that the key has to live. None: the
# lock is free, but others came first.
PLACES = 1_000_000
# What ACQUIRE does about the queue: give way to those in it, or join it.
RESPECT, JOIN = "0", "1"

_VALUES = {"GRACE": GRACE, "KEPT": KEPT, "PLACES": PLACES, "JOIN": JOIN, "MOST_WAITING": MOST_WAITING}


def _script(name: str) -> Script:
    folder = files(__package__) / "scripts"
    text = (folder / f"{name}.lua").read_text("utf-8")
    text = text.replace("-- include first.lua\n", (folder / "first.lua").read_text("utf-8"))
    text = re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)
    return Script(re.sub(rf"\b({'|'.join(_VALUES)})\b", lambda match: str(_VALUES[match[1]]), text))


ACQUIRE, RELEASE, EXTEND, DESCRIBE, BREAK = map(_script, ("acquire", "release", "extend", "describe", "break"))

Keys = tuple[bytes, bytes, bytes]


def keys_of(text: str) -> Keys:
    """The keys of one lock on each node: the lock, its queue, and the facts of the waiters."""
    key = b"%b{%b}" % (PREFIX, text.encode("ascii"))
    return key, key + b":queue", key + b":waiters"
