--@ use clock bells
-- Has a topic's jobs wait no longer: its circuit is closed.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic
-- Gives 1 if it was not, else 0
--
-- Moves nothing.

local topic = ARGV[1]
call('SREM', base .. 'paused', '!' .. topic)
call('HDEL', base .. 'circuits_at', topic)
local was = call('HDEL', base .. 'circuits', topic)
if was == 1 and call('EXISTS', base .. 'r:' .. topic) == 1 then ring(topic) end
return was
