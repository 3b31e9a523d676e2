--@ use clock bells
-- Rings the bells for work that waits. The reason: a process may have taken a ring, and died before it leased the jobs
-- or passed the ring on.
--
-- KEYS  1 the shard's base
-- ARGV  topics: the bells ring for each topic that has ready jobs
--       or none: all bells are rung, and `bell` also gets the empty name, which means: look at all topics
-- Returns nothing
--
-- Changes the state of no job.

-- A removal must be the first write, so that a server with full memory also allows the other writes: see moves. (No
-- topic has this name, so nothing is removed.)
call('ZREM', base .. 'bell', ' ')
if ARGV[1] then
  for _, topic in ipairs(ARGV) do
    if call('EXISTS', base .. 'r:' .. topic) == 1 then ring(topic) end
  end
else
  local tokens = { now, '' }
  for _, topic in ipairs(call('SMEMBERS', base .. 'leasable')) do
    tokens[#tokens + 1] = now
    tokens[#tokens + 1] = topic
    if #tokens >= 2000 then
      call('ZADD', base .. 'bell', 'NX', unpack(tokens))
      tokens = {}
    end
  end
  if tokens[1] then call('ZADD', base .. 'bell', 'NX', unpack(tokens)) end
  call('ZADD', base .. 'tbell', 0, 'timer')
  -- See meter. (An earlier release, which may run at the same time, does not write this key.)
  call('SET', base .. 'counting', call('EXISTS', base .. 'bytes'))
end
return redis.status_reply('OK')
