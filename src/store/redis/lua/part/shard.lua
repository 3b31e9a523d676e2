-- The shard: how its keys are named. For scripts that need no clock; the others begin with clock.
local call, base = redis.call, KEYS[1]
