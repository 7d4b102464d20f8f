"""What happens to a lock on the server: each operation is one Lua script, and therefore atomic.

Four keys per lock, in one hash slot (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/):

held      hash: holder -> the millisecond at which its lease ends, and JSON with its fence, since when (µs), when it
          last asked for more time (its own clock), and what it told of itself
queue     sorted set: waiter -> its ticket
waiters   hash: waiter -> "limit ttl channel look told"; look: the millisecond at which it will ask again
fence     the highest fencing token drawn

A holder or waiter is a token with its mode before it: "x" holds alone, "s" with all other "s", "n" with at most
``limit`` - 1 other "n". A waiter listens on a channel of its connection. PUBSUB NUMSUB tells whether it is connected to
*this* server, so a waiter whose process or connection has gone is passed over at once, without a heartbeat.

The message of a hand-over is published by the script that has made the grant, and by nothing else. The reply of PUBLISH
decides nothing: Redis carries a message on to its replicas and over the bus of a cluster, and counts patterns too. So a
waiter that is connected elsewhere is handed nothing, and hears nothing that it could take for a grant.

All times are the server's. Scripts replicate their effects, so reading the clock in them is sound; SET with GET and PX
makes Redis 6.2 the oldest that can run them. What most calls need comes first, before anything else is even defined.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from .connection import pack, reply_code

if TYPE_CHECKING:
    from django_distlock.keys import LockKey

PREFIX: Final = b"distlock:{"
HELD: Final = b"}:held"
# How long the fencing token of a lock that nobody holds is kept, and tickets of a queue that nobody looks at; ms. The
# clock alone keeps the fence rising afterwards.
KEPT: Final = 86_400_000
# A waiter that would look this much later than the lease before it ends is told so; ms.
LATE: Final = 1000
# So many of them, in the order of the queue.
WARNED: Final = 8


class Script:
    """A Lua script. It is sent by its hash, and as a whole to a server that answers NOSCRIPT: it was restarted."""

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
    return reply_code(reply) == "NOSCRIPT"


def keys_of(key: LockKey) -> tuple[bytes, ...]:
    """The keys of one lock, in the order in which the scripts expect them."""
    return keys_named(key.text_bytes)


def keys_named(text: bytes) -> tuple[bytes, ...]:
    """:func:`keys_of` for a key as the listing shows it."""
    start = PREFIX + text
    return (start + HELD, start + b"}:queue", start + b"}:waiters", start + b"}:fence")


_NAMES = """
local held, queue, waiters, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local call = redis.call
"""

_CLOCK = """
local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local now = math.floor(us / 1000)

local function draw()
  local drawn = string.format('%.0f', us)
  local last = tonumber(call('SET', fence, drawn, 'PX', KEPT, 'GET') or nil)
  if last and last >= us and last < 2^53 - 1 then  -- beyond that nobody can count, so it was not ours
    drawn = string.format('%.0f', last + 1)
    call('SET', fence, drawn, 'PX', KEPT)
  end
  return drawn
end

local function facts(drawn, told)
  return (' {"fence":%s,"since":%.0f,"asked":0,'):format(drawn, us) .. string.sub(told, 2)
end
""".replace("KEPT", str(KEPT))

_STATE = """
-- the live holders: until when, and how many of which mode
local ends, count, mode = {}, 0, nil
local flat = call('HGETALL', held)
for index = 1, #flat, 2 do
  local who = flat[index]
  local at = tonumber(string.match(flat[index + 1], '^(%d+) {') or nil)
  -- whatever somebody else wrote there holds for as long as the key lives
  at = at or now + math.max(call('PTTL', held), 1000)
  if at > now then
    ends[who], count, mode = at, count + 1, string.sub(who, 1, 1)
  else
    call('HDEL', held, who)
  end
end

-- the key lives as long as the longest lease
local function keep()
  local last = 0
  for _, at in pairs(ends) do last = math.max(last, at) end
  if last > 0 then call('PEXPIREAT', held, last) end
end

local function grant(who, ttl, told, drawn)
  if not ends[who] then count = count + 1 end
  ends[who], mode = now + ttl, string.sub(who, 1, 1)
  call('HSET', held, who, string.format('%.0f', now + ttl) .. facts(drawn, told))
  keep()
end

local function extend(who, at, asked)
  ends[who] = at
  local rest = string.match(call('HGET', held, who), '^%d+(.*)$')
  if asked then rest = string.gsub(rest, '"asked":%d+', '"asked":' .. asked, 1) end
  call('HSET', held, who, string.format('%.0f', at) .. rest)
  keep()
end

-- nil if it did not hold
local function drop(who)
  local at = ends[who]
  if at then
    ends[who], count = nil, count - 1
    call('HDEL', held, who)
  end
  return at
end

local function fence_of(who)
  return tonumber(string.match(call('HGET', held, who) or '', '^%d+ {"fence":(%d+)') or nil)
end

local function admits(who, limit)
  if count == 0 then return true end
  local wanted = string.sub(who, 1, 1)
  return wanted == mode and (wanted == 's' or wanted == 'n' and count < limit)
end

local function forget(waiter)
  call('ZREM', queue, waiter)
  call('HDEL', waiters, waiter)
end

-- when a waiter must ask again, though nothing is handed to it
local function look_at(who)
  local soonest, latest
  for _, at in pairs(ends) do
    soonest, latest = math.min(soonest or at, at), math.max(latest or at, at)
  end
  return string.sub(who, 1, 1) == 'n' and soonest or latest or now
end

local function note(waiter, limit, ttl, channel, look, told)
  local text = limit .. ' ' .. ttl .. ' ' .. channel .. ' ' .. string.format('%.0f', look) .. ' ' .. told
  call('HSET', waiters, waiter, text)
end

local function say(channel, waiter, drawn)
  call('PUBLISH', channel, waiter .. ' ' .. drawn .. ' ' .. string.format('%.0f', us))
end

local function known(waiter)
  return string.match(call('HGET', waiters, waiter) or '', '^(%d+) (%d+) (%S+) (%d+) (.*)$')
end

local function connected(channel) return call('PUBSUB', 'NUMSUB', channel)[2] > 0 end

-- the first waiters look when that ends which is held: each of them, because those before it may die with the holder
local function warn()
  for _, waiter in ipairs(call('ZRANGE', queue, 0, WARNED - 1)) do
    local limit, ttl, channel, look, told = known(waiter)
    local sooner = limit and look_at(waiter)
    if sooner and tonumber(look) > sooner + LATE and connected(channel) then  -- fence 0: it asks again now
      note(waiter, limit, ttl, channel, sooner, told)
      say(channel, waiter, '0')
    end
  end
end

-- hand the lock to those whose turn it is and that are connected here; "prompt": is one that must wait on connected?
local function advance(prompt)
  local head = call('ZRANGE', queue, 0, 0)[1]
  while head do
    local limit, ttl, channel, look, told = known(head)
    local turn = limit and admits(head, tonumber(limit))
    if limit and not turn then
      warn()
      if not prompt or connected(channel) then return end
    end
    forget(head)
    if turn and connected(channel) then
      local drawn = draw()
      grant(head, tonumber(ttl), told, drawn)
      say(channel, head, drawn)
    end
    head = call('ZRANGE', queue, 0, 0)[1]
  end
end
""".replace("LATE", str(LATE)).replace("WARNED", str(WARNED))

# ARGV: who, limit, ttl (ms), channel (empty: do not queue), what it tells. Returns the fence (0: busy), the clock (µs),
# how long it is surely taken (ms), how many wait before us.
ACQUIRE: Final = Script(
    _NAMES
    + _CLOCK
    + """
local who, limit, ttl, channel, told = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
if call('EXISTS', held, queue) == 0 then
  local drawn = draw()
  call('HSET', held, who, string.format('%.0f', now + ttl) .. facts(drawn, told))
  call('PEXPIREAT', held, now + ttl)
  return {tonumber(drawn), us}
end
"""
    + _STATE
    + """
-- a request that was sent again; it may also come so late that the lease was prolonged meanwhile
local function again()
  local drawn = ends[who] and fence_of(who)
  if not drawn then return nil end
  extend(who, math.max(ends[who], now + ttl))
  return {drawn, us}
end

local mine = again()
if mine then return mine end
if call('EXISTS', queue) == 1 then
  advance(admits(who, limit))
  mine = again()
  if mine then return mine end
end
if call('EXISTS', queue) == 0 and admits(who, limit) then
  local drawn = draw()
  grant(who, ttl, told, drawn)
  return {tonumber(drawn), us}
end
local place, look = 0, look_at(who)
if channel ~= '' then
  note(who, ARGV[2], ARGV[3], channel, look, told)
  local last = tonumber(call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0)
  call('ZADD', queue, 'NX', string.format('%.0f', math.max(last + 1, us)), who)
  place = call('ZRANK', queue, who) or 0
  if place == 0 then
    call('PEXPIRE', queue, KEPT)
    call('PEXPIRE', waiters, KEPT)
  end
end
return {0, us, look - now, place}
""".replace("KEPT", str(KEPT))
)

# ARGV: who. Returns 1, or 0 if it did not hold (any more). The key of one that holds alone ends with its lease.
RELEASE: Final = Script(
    _NAMES
    + """
local who = ARGV[1]
local gone = 0
if string.sub(who, 1, 1) == 'x' then
  gone = call('HDEL', held, who)
  if call('EXISTS', queue) == 0 then return gone end
end
"""
    + _CLOCK
    + _STATE
    + """
if drop(who) then gone = 1 end
advance()
return gone
"""
)

# ARGV: who. Whatever it is, holder or waiter or neither, it is not any more. Returns 1 if it held.
LEAVE: Final = Script(
    _NAMES
    + _CLOCK
    + _STATE
    + """
forget(ARGV[1])
local was = drop(ARGV[1])
advance()
return was and 1 or 0
"""
)

# ARGV: who, ttl (ms), when the holder asked (its own clock). Returns 1, or 0 if it does not hold any more. If a later
# request has overtaken it, it changes nothing: it might shorten the lease that the holder counts on.
EXTEND: Final = Script(
    _NAMES
    + _CLOCK
    + _STATE
    + f"""
if not ends[ARGV[1]] then return 0 end
local asked = tonumber(string.match(call('HGET', held, ARGV[1]), '"asked":(%d+)') or 0)
local before, after = ends[ARGV[1]], now + tonumber(ARGV[2])
if asked <= tonumber(ARGV[3]) then
  extend(ARGV[1], after, ARGV[3])
  if before > after + {LATE} then advance() end
end
call('PEXPIRE', fence, {KEPT})
return 1
"""
)

# ARGV: who. Returns 1 if it holds.
HOLDS: Final = Script(_NAMES + _CLOCK + _STATE + "return ends[ARGV[1]] and 1 or 0")

# ARGV: the fence of a holder (0: unknown), and the beginning of its token: what is known of it. Returns 1 if it held.
BREAK: Final = Script(
    _NAMES
    + """
if call('TYPE', held).ok ~= 'hash' then return call('DEL', held) end
"""
    + _CLOCK
    + _STATE
    + """
for who in pairs(ends) do
  if tonumber(ARGV[1]) == (fence_of(who) or 0) and string.sub(who, 2, 1 + #ARGV[2]) == ARGV[2] then
    drop(who)
    advance()
    return 1
  end
end
return 0
"""
)

# ARGV: how many waiters are to be described. Returns the live holders with the ends of their leases (ms) and what is in
# "held" for each; how many wait; and what the first of them tell. Waiters that have gone are forgotten.
LOOK: Final = Script(
    _NAMES
    + _CLOCK
    + _STATE
    + """
local there, told = 0, {}
for _, waiter in ipairs(call('ZRANGE', queue, 0, -1)) do
  local channel, facts = string.match(call('HGET', waiters, waiter) or '', '^%d+ %d+ (%S+) %d+ (.*)$')
  if channel and call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
    there, told[#told + 1] = there + 1, #told < tonumber(ARGV[1]) and facts or nil
  else forget(waiter) end
end
local holders = {}
for who, at in pairs(ends) do holders[#holders + 1] = {who, at, call('HGET', held, who)} end
return {holders, there, told}
"""
)
