-- List the holders and waiters of a lock, and forget the waiters that are gone.
-- ARGV: how many waiters are to be described
-- Returns the live holders with the ends of their leases (ms) and their values in "held"; the number of waiters; and
-- what the first of them say of themselves.
-- include keys.lua
-- include clock.lua
-- include state.lua
local there, infos = 0, {}
for _, waiter in ipairs(call('ZRANGE', queue, 0, -1)) do
  local channel, facts = string.match(call('HGET', waiters, waiter) or '', '^%d+ %d+ (%S+) %d+ (.*)$')
  if channel and call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
    there, infos[#infos + 1] = there + 1, #infos < tonumber(ARGV[1]) and facts or nil
  else forget(waiter) end
end
local holders = {}
for who, at in pairs(ends) do holders[#holders + 1] = {who, at, call('HGET', held, who)} end
return {holders, there, infos}
