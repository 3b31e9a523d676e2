--@ use clock bells
-- Notes which topics are paused or resumed. If this shard knows a later pause or resume of a topic, nothing changes for
-- this topic. No jobs of a paused topic are leased.
--
-- KEYS  1 the shard's base
-- ARGV  for each topic: topic, when this was stated (Unix ms), 1 paused or 0 not paused
-- Returns nothing
--
-- Changes the state of no job.

for i = 1, #ARGV, 3 do
  local topic, at, is = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local known = string.match(call('HGET', base .. 'pauses', topic) or '', '^%d+')
  if not known or tonumber(known) <= tonumber(at) then
    -- The first write must be a removal, for a server with full memory: see moves.
    call('ZREM', base .. 'bell', topic)
    call('HSET', base .. 'pauses', topic, at .. ' ' .. is)
    if is == '1' then
      call('SADD', base .. 'paused', topic)
    elseif call('SREM', base .. 'paused', topic) == 1 and call('EXISTS', base .. 'r:' .. topic) == 1 then
      ring(topic)
    end
  end
end
return redis.status_reply('OK')
