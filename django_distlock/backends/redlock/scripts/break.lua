-- 1 if the digest of the first word of the key begins with ARGV[1]. So other values than votes can be removed as well.
local held = redis.pcall('GET', KEYS[1])
if not held then return 0 end
local word = type(held) == 'string' and string.match(held, '^[^ ]*') or ''
if string.sub(redis.sha1hex(word), 1, #ARGV[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
-- include first.lua
first((clock()))
return 1
