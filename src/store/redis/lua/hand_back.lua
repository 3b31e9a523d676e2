--@ use clock bells scores moves leases endings
-- Gives back the leases of a process that died, and its permits.
--
-- KEYS  1 the shard's base
-- ARGV  1 the owner's tag   2 how many jobs at most
-- Gives how many it gave back, and 1 if there are more, else 0; then a topic for each dead letter that it made
--
-- Moves a job: leased -> ready, the attempt not counted, up to three times a job; after that counted, and ready or, its
-- attempts used up, dead. Replaced while it was leased -> delayed, ready

-- After that, the job itself may be what kills.
local FORGIVEN = 3

local owned = base .. 'o:' .. ARGV[1]
local topics, jobs, dead = {}, 0, {}
for _, name in ipairs(call('SPOP', owned, ARGV[2])) do
  -- A topic has no zero byte, an id may have.
  local cut = string.find(name, '\0', 1, true)
  local topic = string.sub(name, 1, cut - 1)
  local ids = topics[topic] or {}
  topics[topic] = ids
  ids[#ids + 1] = string.sub(name, cut + 1)
end
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
      if lease.replaced then
        restore(m, id, lease)
      elseif lease.crashes < FORGIVEN then
        unlease(m, id, lease)
        note(m, id, lease.attempts - 1, lease.crashes + 1, log_of(topic, id, lease))
        place(m, id, lease.due, lease.rank)
      else
        count_as_lost(m, id, lease, 'the consumer died')
      end
    end
  end
  finish(m)
  tell_buried(m, dead)
end
return { jobs, call('EXISTS', owned), unpack(dead) }
