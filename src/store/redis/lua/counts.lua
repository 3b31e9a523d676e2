--@ use shard
-- Counts the jobs of topics that ever had one, some topics at a time.
--
-- KEYS  1 the shard's base
-- ARGV  1 where to go on: '0' at first   2 about how many topics
-- Gives an array: where to go on ('0' when it is done), then for each topic: topic, delayed, ready, leased, dead. A topic
-- may be told more than once
--
-- Moves nothing.

local scan = call('ZSCAN', base .. 'due', ARGV[1], 'COUNT', ARGV[2])
local out, n = { scan[1] }, 1
for i = 1, #scan[2], 2 do
  local topic = scan[2][i]
  out[n + 1] = topic
  for k, prefix in ipairs({ 'd:', 'r:', 'l:', 'x:' }) do out[n + 1 + k] = call('ZCARD', base .. prefix .. topic) end
  n = n + 5
end
return out
