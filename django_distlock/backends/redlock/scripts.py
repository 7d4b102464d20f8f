"""What the nodes are asked, as Lua scripts and as bytes on the wire; and the values that stand at them.

A lock is one key with a TTL, ``redlock:{<key>}``. Its value is the *vote*, a space and the facts of the holder in JSON.
A vote is the claim's token with the number of the attempt: what takes back one attempt, and may be executed late, can
never take a later one away.
Waiters stand in line at one node: in a sorted set, in order of arrival, and in a hash, with when they were last seen,
the channel on which they listen, and who they are. Whoever frees the key there calls the first of them. That only keeps
them from asking again and again and from rushing: who has the lock is decided by the majority alone.
"""

from __future__ import annotations

from django_distlock.backends.redis.protocol import Script
from django_distlock.records import MOST_WAITING

PREFIX = b"redlock:"
# Whoever has been called, or looks again and again, is passed over after this time; milliseconds.
GRACE = 500
# The queue is forgotten if nobody has looked for so long; milliseconds. Who waits looks every few seconds.
KEPT = 15_000
# A refusal is -1 less the number of waiters ahead, less this for each millisecond that the key has to live; none: it is
# free, but others came first.
PLACES = 1_000_000
# How the queue is to be treated by ACQUIRE.
NO_QUEUE, RESPECT, JOIN = "0", "1", "2"

# The first in line that is still there, for a key that is free. Who listens is called, once: Redis tells whether
# anybody heard it. If it may not publish, it cannot tell, and GRACE decides.
_FIRST = f"""
local key, queue, waiters = KEYS[1], KEYS[2], KEYS[3]
local function first(now, me)
  local head = redis.call('ZRANGE', queue, 0, 0)[1]
  while head and head ~= me do
    local seen, ear, facts = string.match(redis.call('HGET', waiters, head) or '', '^(%d+) (%S*) (.*)$')
    if seen and ear ~= '' then
      if redis.pcall('PUBLISH', ear, head) ~= 0 then
        redis.call('HSET', waiters, head, string.format('%.0f  %s', now, facts))
        return head
      end
    elseif seen and tonumber(seen) > now - {GRACE} then
      return head
    end
    redis.call('ZREM', queue, head)
    redis.call('HDEL', waiters, head)
    head = redis.call('ZRANGE', queue, 0, 0)[1]
  end
  return head
end
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000), time[1] * 1000000 + time[2]
end
"""

# Above zero: granted (if it stood in the queue: since when, to get the same place again with ARGV[6]). Else see PLACES.
# ARGV[7]: the channel on which it listens, nothing if it looks again and again.
_ACQUIRE = f"""
local vote, member, mode = ARGV[1], ARGV[5], ARGV[4]
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'string' and string.sub(held, 1, #vote) == vote then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
if not held and (mode == '{NO_QUEUE}' or redis.call('EXISTS', KEYS[2]) == 0) then
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[2])
  return 1
end
if mode == '{NO_QUEUE}' then return -1 - {PLACES} end
{_FIRST}
local now, since = clock()
local left = 0
if held then
  left = redis.call('PTTL', key)
  left = left < 0 and 2^31 or math.min(math.max(left, 1), 2^31)
elseif (first(now, member) or member) == member then
  local joined = redis.call('ZSCORE', queue, member)
  redis.call('ZREM', queue, member)
  redis.call('HDEL', waiters, member)
  redis.call('SET', key, ARGV[3], 'PX', ARGV[2])
  return joined and tonumber(joined) or 1
end
local ahead = redis.call('ZRANK', queue, member)
if mode == '{JOIN}' then
  if not ahead then
    redis.call('ZADD', queue, ARGV[6] ~= '' and ARGV[6] or since, member)
    ahead = redis.call('ZRANK', queue, member)
  end
  local facts = string.sub(ARGV[3], #vote + 1)
  redis.call('HSET', waiters, member, string.format('%.0f %s %s', now, ARGV[7], facts))
  redis.call('PEXPIRE', queue, {KEPT})
  redis.call('PEXPIRE', waiters, {KEPT})
end
return -1 - (ahead or redis.call('ZCARD', queue)) - left * {PLACES}
"""

# 1 if the key was ours. Also takes ARGV[2] off the queue, and calls the next one.
_RELEASE = f"""
local held, found = redis.pcall('GET', KEYS[1]), 0
if type(held) == 'string' and string.sub(held, 1, #ARGV[1]) == ARGV[1] then
  found, held = redis.call('DEL', KEYS[1]), false
end
if redis.call('EXISTS', KEYS[2]) == 0 then return found end
{_FIRST}
redis.call('ZREM', queue, ARGV[2])
redis.call('HDEL', waiters, ARGV[2])
if not held then first((clock())) end
return found
"""

# 1 if the key is ours and, with a TTL in ARGV[2], extended.
_EXTEND = """
local held = redis.pcall('GET', KEYS[1])
if type(held) ~= 'string' or string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
if ARGV[2] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
"""

# For each lock: its value, its TTL in milliseconds, how many wait for it, and the facts of the first of them. Who may
# not ask how many listen takes the word of those who wait.
_DESCRIBE = f"""
local rows, time = {{}}, redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #KEYS, 3 do
  local value = redis.pcall('GET', KEYS[i])
  if type(value) == 'table' then value = '' end
  local there, told = 0, {{}}
  for _, member in ipairs(redis.call('ZRANGE', KEYS[i + 1], 0, -1)) do
    local row = redis.call('HGET', KEYS[i + 2], member) or ''
    local seen, ear, facts = string.match(row, '^(%d+) (%S*) (.*)$')
    local heard = ear and ear ~= '' and redis.pcall('PUBSUB', 'NUMSUB', ear)
    if seen and (heard and (heard.err or heard[2] > 0) or not heard and tonumber(seen) > now - {GRACE}) then
      there, told[#told + 1] = there + 1, #told < {MOST_WAITING} and facts or nil
    end
  end
  rows[#rows + 1] = {{value, redis.call('PTTL', KEYS[i]), there, told}}
end
return rows
"""

# 1 if the key was what ARGV[1] says, a part of the digest of its first word. So what is no vote can be taken away, too.
_BREAK = f"""
local held = redis.pcall('GET', KEYS[1])
if not held then return 0 end
local word = type(held) == 'string' and string.match(held, '^[^ ]*') or ''
if string.sub(redis.sha1hex(word), 1, #ARGV[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
{_FIRST}
first((clock()))
return 1
"""

ACQUIRE, RELEASE, EXTEND, DESCRIBE, BREAK = map(Script, (_ACQUIRE, _RELEASE, _EXTEND, _DESCRIBE, _BREAK))


Keys = tuple[bytes, bytes, bytes]


def keys_of(text: str) -> Keys:
    """The keys of one lock on each node, of one hash slot: the lock, its queue, and what is known of who is in it."""
    key = b"%b{%b}" % (PREFIX, text.encode("ascii"))
    return key, key + b":queue", key + b":waiters"


def vote_of(token: str, attempt: int | str) -> str:
    """What an attempt is known by. No vote begins with another."""
    return f"{token}-{attempt} "
