--@ use shard
-- Forgets that jobs were put, once they were dropped where they came from. Last step of four: see reconcile_take. What
-- is never forgotten costs some bytes.
--
-- KEYS  1 the base of the jobs' home shard
-- ARGV  1 the shard that held them, then for each entry that is gone there: topic, id, stamp
-- Gives how many it forgot
--
-- Moves nothing.

local put = base .. 'put:' .. ARGV[1]
local forgotten = 0
for i = 2, #ARGV, 3 do
  local name = ARGV[i] .. '\0' .. ARGV[i + 1]
  if call('HGET', put, name) == ARGV[i + 2] then forgotten = forgotten + call('HDEL', put, name) end
end
return forgotten
