-- The fence: the caller must have the same set of nodes as this shard. KEYS[2] is the base, followed by the caller's
-- set. Needs: `call` and `base`.
local own_set = call('GET', base .. 'set') or ''
if base .. own_set ~= KEYS[2] then return redis.error_reply('DQSET ' .. own_set) end
