--@ use shard fence
-- With 'done', removes entries of the outbox after their jobs were added. With 'set', stores the set of nodes under
-- which entries are sent from now on.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  'done' and the numbers of the entries; or 'set', the previous set and the new set
-- Returns how many entries were removed; or 1 if the previous set was right, else 0
--
-- Changes the state of no job.

if ARGV[1] == 'set' then
  if (call('GET', base .. 'outset') or '') ~= ARGV[2] then return 0 end
  -- The first write must be a removal, for a server with full memory: see moves.
  call('DEL', base .. 'outset')
  call('SET', base .. 'outset', ARGV[3])
  return 1
end
local gone = 0
for i = 2, #ARGV do gone = gone + call('ZREMRANGEBYSCORE', base .. 'out', ARGV[i], ARGV[i]) end
return gone
