-- The first waiter that is still there, for a lock that is free. A waiter that listens is called, once. The reply of
-- PUBLISH says whether it heard the call. If this account may not publish, GRACE decides.
local key, queue, waiters = KEYS[1], KEYS[2], KEYS[3]
local function first(now, me)
  local head = redis.call('ZRANGE', queue, 0, 0)[1]
  while head and head ~= me do
    local seen, channel, facts = string.match(redis.call('HGET', waiters, head) or '', '^(%d+) (%S*) (.*)$')
    if seen and channel ~= '' then
      if redis.pcall('PUBLISH', channel, head) ~= 0 then
        redis.call('HSET', waiters, head, string.format('%.0f  %s', now, facts))
        return head
      end
    elseif seen and tonumber(seen) > now - GRACE then
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
