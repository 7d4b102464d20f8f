"""What the nodes are asked, as Lua scripts and as bytes on the wire; and the values that stand at them.

A lock is one key with a TTL, ``redlock:{<key>}``. Its value is the *vote*, a space and the facts of the holder in JSON.
A vote is the claim's token with the number of the attempt: what takes back one attempt, and may be executed late, can
never take a later one away.
Waiters stand in two sorted sets beside it, in order of arrival and by when they were last seen, at the one node that
they look at while they wait. The queue only keeps them from rushing: who has the lock is decided by the majority alone.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from django_distlock.records import LockInfo

from .redis_protocol import Script

if TYPE_CHECKING:
    from typing import Any

PREFIX = b"redlock:"
# A waiter that has not been seen for this long is passed over; milliseconds.
GRACE = 500
# Added to a refusal if the key is free but others came first.
NOT_YOUR_TURN = 1_000_000
# Digits of the digest by which a vote is shown.
DIGEST = 16
# How the queue is to be treated by ACQUIRE.
NO_QUEUE, RESPECT, JOIN = "0", "1", "2"

# Above zero: granted (if it stood in the queue: since when, to get the same place again with ARGV[6]). Else -1 less the
# number of waiters ahead, and less NOT_YOUR_TURN if the key itself is free.
_ACQUIRE = f"""
local vote, key, queue, seen, member = ARGV[1], KEYS[1], KEYS[2], KEYS[3], ARGV[5]
local held = redis.pcall('GET', key)
if type(held) == 'string' and string.sub(held, 1, #vote) == vote then
  redis.call('PEXPIRE', key, ARGV[2])
  return 1
end
local mode = ARGV[4]
if not held and (mode == '{NO_QUEUE}' or redis.call('EXISTS', queue) == 0) then
  redis.call('SET', key, ARGV[3], 'PX', ARGV[2])
  return 1
end
if mode == '{NO_QUEUE}' then return -1 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', now - {GRACE})) do
  redis.call('ZREM', queue, gone)
  redis.call('ZREM', seen, gone)
end
local ahead = redis.call('ZRANK', queue, member)
if not held and (ahead == 0 or redis.call('ZCARD', queue) == 0) then
  local since = redis.call('ZSCORE', queue, member)
  redis.call('ZREM', queue, member)
  redis.call('ZREM', seen, member)
  redis.call('SET', key, ARGV[3], 'PX', ARGV[2])
  return since and tonumber(since) or 1
end
if mode == '{JOIN}' then
  if not ahead then
    redis.call('ZADD', queue, ARGV[6] ~= '' and ARGV[6] or time[1] * 1000000 + time[2], member)
    ahead = redis.call('ZRANK', queue, member)
  end
  redis.call('ZADD', seen, now, member)
  redis.call('PEXPIRE', queue, {2 * GRACE})
  redis.call('PEXPIRE', seen, {2 * GRACE})
end
return -1 - (ahead or 0) - (held and 0 or {NOT_YOUR_TURN})
"""

# 1 if the key was ours. Also takes ARGV[2] off the queue.
_RELEASE = """
local held, found = redis.pcall('GET', KEYS[1]), 0
if type(held) == 'string' and string.sub(held, 1, #ARGV[1]) == ARGV[1] then found = redis.call('DEL', KEYS[1]) end
if ARGV[2] ~= '' then
  redis.call('ZREM', KEYS[2], ARGV[2])
  redis.call('ZREM', KEYS[3], ARGV[2])
end
return found
"""

# 1 if the key is ours and, with a TTL in ARGV[2], extended.
_EXTEND = """
local held = redis.pcall('GET', KEYS[1])
if type(held) ~= 'string' or string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
if ARGV[2] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
"""

# For each lock: its value, its TTL in milliseconds and how many wait for it.
_DESCRIBE = """
local rows = {}
for i = 1, #KEYS, 2 do
  local value = redis.pcall('GET', KEYS[i])
  if type(value) == 'table' then value = '' end
  rows[#rows + 1] = {value, redis.call('PTTL', KEYS[i]), redis.call('ZCARD', KEYS[i + 1])}
end
return rows
"""

# 1 if the key was what ARGV[1] says, a part of the digest of its first word. So what is no vote can be taken away, too.
_BREAK = """
local held = redis.pcall('GET', KEYS[1])
if not held then return 0 end
local word = type(held) == 'string' and string.match(held, '^[^ ]*') or ''
if string.sub(redis.sha1hex(word), 1, #ARGV[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""

ACQUIRE, RELEASE, EXTEND, DESCRIBE, BREAK = map(Script, (_ACQUIRE, _RELEASE, _EXTEND, _DESCRIBE, _BREAK))


Keys = tuple[bytes, bytes, bytes]


def keys_of(text: str) -> Keys:
    """The keys of one lock on each node, of one hash slot: the lock, its queue, and who of it was seen when."""
    key = b"%b{%b}" % (PREFIX, text.encode("ascii"))
    return key, key + b":queue", key + b":seen"


def vote_of(token: str, attempt: int | str) -> str:
    """What an attempt is known by. No vote begins with another."""
    return f"{token}-{attempt} "


class Seen(NamedTuple):
    """A lock as one node shows it."""

    text: str
    digest: str  # of the vote, as BREAK wants it
    facts: dict[str, Any]
    ttl: float  # seconds; below zero: for ever
    waiters: int


def seen(key: bytes, row: list[Any]) -> Seen | None:
    """A row of DESCRIBE; None if the key has gone. What cannot be read is held by nobody knows whom."""
    value, ttl, waiters = row
    if value is None:
        return None
    word, _, rest = value.partition(b" ")
    digest = hashlib.sha1(word, usedforsecurity=False).hexdigest()[:DIGEST]
    try:
        facts = json.loads(rest.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        facts = {}
    if not isinstance(facts, dict) or not isinstance(facts.get("since", 0.0), (int, float)):
        facts = {}
    return Seen(key[len(PREFIX) + 1 : -1].decode("ascii", "replace"), digest, facts, ttl / 1000, waiters)


def info_of(alias: str, copies: list[Seen], nodes: int) -> LockInfo:
    """One lock of one holder, as ``copies`` of ``nodes`` nodes show it."""
    first = copies[0]
    facts = first.facts
    since, name = facts.get("since"), facts.get("name")
    holder = f"{facts.get('host')}:{facts.get('pid')}:{facts.get('thread')}" if facts else "unknown"
    return LockInfo(
        backend=alias,
        key=first.text,
        name=name if isinstance(name, str) else None,
        holder=holder,
        acquired_at=_moment(since) if since else None,
        # when a majority will have let it go cannot be told from fewer
        expires_at=datetime.now(UTC) + timedelta(seconds=max(copy.ttl for copy in copies)),
        waiters=max(copy.waiters for copy in copies),
        details={"token": first.digest, "nodes": f"{len(copies)} of {nodes}"},
    )


def _moment(since: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(since, UTC)
    except (ValueError, OverflowError, OSError):
        return None
