-- For each lock: its value, its TTL in milliseconds, how many wait for it, and the facts of the first of them. Without
-- the permission to ask who listens, every waiter counts.
local rows, time = {}, redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #KEYS, 3 do
  local value = redis.pcall('GET', KEYS[i])
  if type(value) == 'table' then value = '' end
  local there, shown = 0, {}
  for _, member in ipairs(redis.call('ZRANGE', KEYS[i + 1], 0, -1)) do
    local row = redis.call('HGET', KEYS[i + 2], member) or ''
    local seen, channel, facts = string.match(row, '^(%d+) (%S*) (.*)$')
    local heard = channel and channel ~= '' and redis.pcall('PUBSUB', 'NUMSUB', channel)
    if seen and (heard and (heard.err or heard[2] > 0) or not heard and tonumber(seen) > now - GRACE) then
      there, shown[#shown + 1] = there + 1, #shown < MOST_WAITING and facts or nil
    end
  end
  rows[#rows + 1] = {value, redis.call('PTTL', KEYS[i]), there, shown}
end
return rows
