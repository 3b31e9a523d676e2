--@ use clock fence bells scores meter numbered moves leases history endings owned circuits
-- Hands back the leases of a process that died, and its permits.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 the owner's tag   2 how many jobs at most
-- Returns how many jobs it handed back, and 1 if there are more, else 0; then a topic for each dead letter that it made
--
-- Moves a job: leased -> ready, the attempt not counted, up to three times for each job. After that the attempt counts:
-- leased -> ready, or dead if its attempts are used up. If it was replaced while it was leased -> delayed, ready

-- How many attempts of a job do not count because the process that had leased the job died. After that, the attempts
-- count, because the job itself may be the cause of the deaths.
local FORGIVEN = 3

local owned = base .. 'o:' .. ARGV[1]
local topics, jobs, dead = by_topic(call('SPOP', owned, ARGV[2])), 0, {}
for _, topic in ipairs(call('SMEMBERS', base .. 'flying')) do
  local flying = base .. 'f:' .. topic
  if call('HDEL', flying, ARGV[1]) == 1 and call('EXISTS', flying) == 0 then call('SREM', base .. 'flying', topic) end
end
for topic, ids in pairs(topics) do
  local m, leases = moves(topic), call('HMGET', base .. 'L:' .. topic, unpack(ids))
  for i, id in ipairs(ids) do
    local lease = leases[i] and lease_of(leases[i])
    if lease and lease.owner == ARGV[1] then
      jobs = jobs + 1
      lease.owner = ''
      end_probe(m, id)
      if lease.replaced then
        restore(m, id, lease)
      elseif lease.crashes < FORGIVEN then
        unlease(m, id, lease)
        note(m, id, lease.attempts - 1, lease.crashes + 1, log_of(topic, id, lease))
        place(m, id, due_after(lease), lease.rank)
      else
        count_as_lost(m, id, lease, 'the consumer died')
      end
    end
  end
  finish(m)
  add_dead_topics(m, dead)
end
return { jobs, call('EXISTS', owned), unpack(dead) }
