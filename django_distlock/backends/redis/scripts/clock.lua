-- The time of the server, and the next fencing token.
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
