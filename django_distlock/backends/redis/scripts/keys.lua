-- The four keys of one lock:
-- held      hash: holder -> the millisecond at which its lease ends, and JSON with its fence, the start of its lease
--           (us), when it last asked for more time (by its own clock), and what it says of itself
-- queue     sorted set: waiter -> its ticket
-- waiters   hash: waiter -> "limit ttl channel look info"; look: the millisecond at which it will ask again
-- fence     the highest fencing token drawn
local held, queue, waiters, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local call = redis.call
