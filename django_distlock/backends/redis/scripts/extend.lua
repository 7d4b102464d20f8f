-- Give a holder more time.
-- ARGV: who, ttl (ms), when the holder asked (by its own clock)
-- Returns 1, or 0 if it does not hold the lock. A request that a later one has overtaken changes nothing: it might
-- shorten the lease that the holder counts on.
-- include keys.lua
-- include clock.lua
-- include state.lua
if not ends[ARGV[1]] then return 0 end
-- first a command that needs no memory: then Redis executes the rest, too, when it has none left
call('PEXPIRE', fence, KEPT)
local asked = tonumber(string.match(call('HGET', held, ARGV[1]), '"asked":(%d+)') or 0)
if asked <= tonumber(ARGV[3]) then extend(ARGV[1], now + tonumber(ARGV[2]), ARGV[3]) end
return 1
