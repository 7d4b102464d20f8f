-- The live holders, and what can be done with holders and waiters. A holder or waiter ("who") is a token with its mode
-- before it: "x" holds alone, "s" with all other "s", "n" with at most limit - 1 other "n".
-- ends: when the lease of each live holder ends; count: their number; mode: that of all of them
local ends, count, mode = {}, 0, nil
local flat = call('HGETALL', held)
for index = 1, #flat, 2 do
  local who = flat[index]
  local at = tonumber(string.match(flat[index + 1], '^(%d+) {') or nil)
  -- a value that is not ours holds for as long as the key lives
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

local function grant(who, ttl, info, drawn)
  if not ends[who] then count = count + 1 end
  ends[who], mode = now + ttl, string.sub(who, 1, 1)
  call('HSET', held, who, string.format('%.0f', now + ttl) .. facts(drawn, info))
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

-- when a waiter must ask again if it is not handed the lock before
local function look_at(who)
  local soonest, latest
  for _, at in pairs(ends) do
    soonest, latest = math.min(soonest or at, at), math.max(latest or at, at)
  end
  return string.sub(who, 1, 1) == 'n' and soonest or latest or now
end

local NOTE = '^(%d+) (%d+) (%S+) (%d+) (.*)$'

local function note(waiter, limit, ttl, channel, look, info)
  local text = limit .. ' ' .. ttl .. ' ' .. channel .. ' ' .. string.format('%.0f', look) .. ' ' .. info
  call('HSET', waiters, waiter, text)
  return text
end

local function say(channel, waiter, drawn)
  call('PUBLISH', channel, waiter .. ' ' .. drawn .. ' ' .. string.format('%.0f', us))
end

local function connected(channel) return call('PUBSUB', 'NUMSUB', channel)[2] > 0 end

-- the first waiters, one more than are warned, and what is noted of each
local function first()
  local line = call('ZRANGE', queue, 0, WARNED)
  return line, line[1] and call('HMGET', waiters, unpack(line))
end

-- have the first waiters, from "at" on, ask when the present lease ends: several, because the first ones may die with
-- the holder. The pattern ends before what they say of themselves, which need not be read
local function warn(line, notes, at)
  for index = at, math.min(#line, at + WARNED - 1) do
    local look = tonumber(string.match(notes[index] or '', '^%d+ %d+ %S+ (%d+) ') or nil)
    local sooner = look and look_at(line[index])
    if sooner and look > sooner + LATE then
      local limit, ttl, channel, _, info = string.match(notes[index], NOTE)
      if connected(channel) then  -- fence 0: it asks again now
        notes[index] = note(line[index], limit, ttl, channel, sooner, info)
        say(channel, line[index], '0')
      end
    end
  end
end

-- hand the lock to the waiters whose turn it is and that are connected here. prompt: pass over a first waiter that must
-- wait on, if it is not connected. Returns true if one waits on
local function advance(prompt)
  local line, notes = first()
  local at = 1
  while line[at] do
    local head = line[at]
    local limit, ttl, channel, _, info = string.match(notes[at] or '', NOTE)
    local turn = limit and admits(head, tonumber(limit))
    if limit and not turn then
      warn(line, notes, at)
      if not prompt or connected(channel) then return true end
    end
    forget(head)
    if turn and connected(channel) then
      local drawn = draw()
      grant(head, tonumber(ttl), info, drawn)
      say(channel, head, drawn)
    end
    at = at + 1
    if at > 2 and #line > WARNED then
      line, notes = first()
      at = 1
    end
  end
end
