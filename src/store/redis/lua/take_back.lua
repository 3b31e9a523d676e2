--@ use clock fence bells scores meter numbered moves leases owned circuits
-- Takes back the leases of a lease call that got no answer, step by step. From the first step on, the call is refused.
-- So it leases nothing if it reaches the server later.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 the owner's tag   2 the beginning of the call's tokens: 16 bytes   3 for how many ms the call is refused
--       4 the cursor that the step before returned; '0' at first
--       5 about how many of the owner's leases one step looks at
-- Returns the cursor for the next step ('0' if this was the last one), and how many jobs were taken back
--
-- Moves a job: leased -> ready, the attempt not counted. If it was replaced while it was leased -> delayed, ready

local owner, prefix, jobs = ARGV[1], ARGV[2], 0
-- A removal comes first: see moves. (No topic has this name, so nothing is removed.)
call('ZREM', base .. 'bell', ' ')
call('SET', base .. 'w:' .. prefix, '', 'PX', ARGV[3])
local found = call('SSCAN', base .. 'o:' .. owner, ARGV[4], 'COUNT', ARGV[5])
local topics = by_topic(found[2])
for topic, ids in pairs(topics) do
  local m, leases = moves(topic), call('HMGET', base .. 'L:' .. topic, unpack(ids))
  for i, id in ipairs(ids) do
    local packed = leases[i]
    if packed and string.sub(packed, 1, #prefix) == prefix then
      local lease = lease_of(packed)
      if lease.owner == owner then
        jobs = jobs + 1
        end_probe(m, id)
        -- The lease has not changed the notes of the job. The notes still have the number of attempts from before the
        -- lease. So the attempt does not count.
        restore(m, id, lease)
      end
    end
  end
  make(m)
end
return { found[1], jobs }
