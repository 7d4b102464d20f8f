-- Above zero: the vote is granted. A waiter that was in the queue gets the time since when, to get the same place again
-- with ARGV[6]. Below zero: a refusal, see PLACES in the module.
-- ARGV: vote, TTL in milliseconds, value of the key, mode, member of the queue, since when, channel or nothing.
local vote, member, mode = ARGV[1], ARGV[5], ARGV[4]
local queued = redis.call('EXISTS', KEYS[2]) == 1
if not queued and redis.call('SET', KEYS[1], ARGV[3], 'NX', 'PX', ARGV[2]) then return 1 end
-- include first.lua
local now, since = clock()
local left = redis.call('PTTL', key)
if left ~= -2 then
  left = left < 0 and 2^31 or math.min(math.max(left, 1), 2^31)
elseif (first(now, member) or member) == member then
  local joined = redis.call('ZSCORE', queue, member)
  redis.call('ZREM', queue, member)
  redis.call('HDEL', waiters, member)
  redis.call('SET', key, ARGV[3], 'PX', ARGV[2])
  return joined and tonumber(joined) or 1
else
  left = 0
end
local ahead = redis.call('ZRANK', queue, member)
if mode == 'JOIN' then
  if not ahead then
    redis.call('ZADD', queue, ARGV[6] ~= '' and ARGV[6] or since, member)
    ahead = redis.call('ZRANK', queue, member)
  end
  local facts = string.sub(ARGV[3], #vote + 1)
  redis.call('HSET', waiters, member, string.format('%.0f %s %s', now, ARGV[7], facts))
  redis.call('PEXPIRE', queue, KEPT)
  redis.call('PEXPIRE', waiters, KEPT)
end
return -1 - (ahead or redis.call('ZCARD', queue)) - left * PLACES
