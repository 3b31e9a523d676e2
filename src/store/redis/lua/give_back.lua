--@ use shard
-- Gives back rings that came to a process that does not serve their topic. Another process gets these rings, with the
-- same score.
--
-- KEYS  1 the shard's base
-- ARGV  for each ring: topic, its score in `bell`
-- Returns nothing
--
-- Changes the state of no job.

-- A removal must be the first write, so that a server with full memory also allows the other writes: see moves. (No
-- topic has this name, so nothing is removed.)
call('ZREM', base .. 'bell', ' ')
for i = 1, #ARGV, 2 do
  local topic = ARGV[i]
  if call('EXISTS', base .. 'r:' .. topic) == 1 and call('SISMEMBER', base .. 'paused', topic) == 0 then
    call('ZADD', base .. 'bell', 'NX', ARGV[i + 1], topic)
  end
end
return redis.status_reply('OK')
