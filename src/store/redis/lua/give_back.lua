--@ use shard
-- Gives rings back that were told to somebody who does not serve their topic: they ring for another, as what they were.
--
-- KEYS  1 the shard's base
-- ARGV  for each ring: topic, its score in `bell`
-- Gives nothing
--
-- Moves nothing.

-- A removal comes first: see moves. (No topic is named so.)
call('ZREM', base .. 'bell', ' ')
for i = 1, #ARGV, 2 do
  local topic = ARGV[i]
  if call('EXISTS', base .. 'r:' .. topic) == 1 and call('SISMEMBER', base .. 'paused', topic) == 0 then
    call('ZADD', base .. 'bell', 'NX', ARGV[i + 1], topic)
  end
end
return redis.status_reply('OK')
