-- The fence: the caller must have the same set of nodes as this shard. KEYS[2] is the base, followed by the caller's
-- set. Needs: `call` and `base`. `counting`: whether the bytes of any topic are counted: see meter. `counting` is read
-- here together with the set, because one read of two keys takes less time than two reads. If the key
-- `counting` is missing, the hash `bytes` decides: bytes are counted if this hash exists.
local own_set, counting = unpack(call('MGET', base .. 'set', base .. 'counting'))
own_set = own_set or ''
if counting then counting = counting == '1' else counting = call('EXISTS', base .. 'bytes') == 1 end
if base .. own_set ~= KEYS[2] then return redis.error_reply('DQSET ' .. own_set) end
