-- The shard: the names of its keys. For scripts that need no clock. The others begin with clock.
local call, base = redis.call, KEYS[1]
