--@ use shard fence
-- Returns the records of an id.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 topic   2 id
-- Returns the records, the oldest first, as part/history.lua describes them; nothing if there are none
--
-- Changes the state of no job.

return call('HGET', base .. 'H:' .. ARGV[1], ARGV[2])
