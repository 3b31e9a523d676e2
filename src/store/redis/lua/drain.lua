--@ use shard
-- Notes that a node is drained of its jobs, or is no longer, where nothing later has been heard of it.
--
-- KEYS  1 the base of the node's first shard
-- ARGV  1 the drained node's name   2 when it was said (Unix ms)   3 1 drained or 0 not
-- Gives nothing
--
-- Moves nothing.

local known = string.match(call('HGET', base .. 'drained', ARGV[1]) or '', '^%d+')
if not known or tonumber(known) <= tonumber(ARGV[2]) then
  call('HSET', base .. 'drained', ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
end
return redis.status_reply('OK')
