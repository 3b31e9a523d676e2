--@ use shard fence
-- Stores the setting of each topic that says what is kept of its ended jobs.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  for each topic: its name ('' means all topics together), and the value of `keeping` ('' means the default): see
--       part/history.lua
-- Returns nothing
--
-- Changes the state of no job.

for i = 1, #ARGV, 2 do
  -- The first write must be a removal, for a server with full memory: see moves.
  call('HDEL', base .. 'keeping', ARGV[i])
  if ARGV[i + 1] ~= '' then call('HSET', base .. 'keeping', ARGV[i], ARGV[i + 1]) end
end
