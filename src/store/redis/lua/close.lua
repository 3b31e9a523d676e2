--@ use clock bells
-- Closes the circuit of a topic: its jobs are leased again.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic
-- Returns 1 if the circuit was not closed before, else 0
--
-- Changes the state of no job.

local topic = ARGV[1]
call('SREM', base .. 'paused', '!' .. topic)
call('HDEL', base .. 'circuits_at', topic)
local was = call('HDEL', base .. 'circuits', topic)
if was == 1 and call('EXISTS', base .. 'r:' .. topic) == 1 then ring(topic) end
return was
