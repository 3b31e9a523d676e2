-- The shard: the names of its keys. For scripts that need no clock. The other scripts begin with the part `clock`.
local call, base = redis.call, KEYS[1]
