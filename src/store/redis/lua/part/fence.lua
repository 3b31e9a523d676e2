-- The fence: the caller must have the same set of nodes as this shard. KEYS[2] is the base, followed by the caller's
-- set. Needs: `call` and `base`. `counting`: whether the bytes of some topic are counted: see meter. It is read here,
-- because a read of two keys takes less time than two reads. If `counting` is not stored, the hash `bytes` is looked
-- for.
local own_set, counting = unpack(call('MGET', base .. 'set', base .. 'counting'))
own_set = own_set or ''
if counting then counting = counting == '1' else counting = call('EXISTS', base .. 'bytes') == 1 end
if base .. own_set ~= KEYS[2] then return redis.error_reply('DQSET ' .. own_set) end
