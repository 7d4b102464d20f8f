-- 1 if the key was ours, and is deleted. Also takes the member ARGV[2] out of the queue, and calls the next one.
local held, found = redis.pcall('GET', KEYS[1]), 0
if type(held) == 'string' and string.sub(held, 1, #ARGV[1]) == ARGV[1] then
  found, held = redis.call('DEL', KEYS[1]), false
end
if redis.call('EXISTS', KEYS[2]) == 0 then return found end
-- include first.lua
redis.call('ZREM', queue, ARGV[2])
redis.call('HDEL', waiters, ARGV[2])
if not held then first((clock())) end
return found
