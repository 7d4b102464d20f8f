-- Acquire a lock, or join its queue.
-- ARGV: who, limit, ttl (ms), channel (empty: do not queue), what it says of itself
-- Returns the fence (0: busy), the clock (us), how long the lock is surely taken (ms), how many wait before it.
-- include keys.lua
-- include clock.lua
local who, limit, ttl, channel, info = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
if call('EXISTS', held, queue) == 0 then
  local drawn = draw()
  call('HSET', held, who, string.format('%.0f', now + ttl) .. facts(drawn, info))
  call('PEXPIREAT', held, now + ttl)
  return {tonumber(drawn), us}
end
-- include state.lua
-- a request that was sent again. It may come so late that the lease has been renewed since
local function again()
  local drawn = ends[who] and fence_of(who)
  if not drawn then return nil end
  extend(who, math.max(ends[who], now + ttl))
  return {drawn, us}
end

local mine = again()
if mine then return mine end
local others = advance(admits(who, limit))
mine = again()
if mine then return mine end
if not others and admits(who, limit) then
  local drawn = draw()
  grant(who, ttl, info, drawn)
  return {tonumber(drawn), us}
end
local place, look = 0, look_at(who)
if channel ~= '' then
  note(who, ARGV[2], ARGV[3], channel, look, info)
  local last = tonumber(call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0)
  call('ZADD', queue, 'NX', string.format('%.0f', math.max(last + 1, us)), who)
  place = call('ZRANK', queue, who) or 0
  if place == 0 then
    call('PEXPIRE', queue, KEPT)
    call('PEXPIRE', waiters, KEPT)
  end
end
return {0, us, look - now, place}
