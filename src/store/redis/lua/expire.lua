--@ use clock fence bells scores meter numbered moves leases history endings
-- Ends leases that are past their deadline.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 how many jobs at most   2 how many topics at most
-- Returns how many leases it ended, the next deadline in ms (in the past: there is more to do; -1: nothing is leased),
-- the shard's now in ms, and 1 if the outbox has entries, else 0; then a topic for each dead letter that it made
--
-- Moves a job: leased -> ready, the attempt counted; if its attempts are used up -> dead; if it was replaced while it
-- was leased -> delayed, ready

-- While jobs were moved, no lease could be settled. So after a move, processes first get time to settle their leases:
-- no lease expires while the key `grace` exists.
local grace = call('PTTL', base .. 'grace')
if grace > 0 then return { 0, now + grace, now, 0 } end
local left, jobs, dead = tonumber(ARGV[1]), 0, {}
for _, topic in ipairs(call('ZRANGE', base .. 'end', '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[2])) do
  if left == 0 then break end
  local ids = call('ZRANGE', base .. 'l:' .. topic, '-inf', now, 'BYSCORE', 'LIMIT', 0, left)
  if ids[1] then
    local m, leases = moves(topic), call('HMGET', base .. 'L:' .. topic, unpack(ids))
    for i, id in ipairs(ids) do
      local lease = leases[i] and lease_of(leases[i])
      if not lease then
        add(m, 'unleased', id)
      elseif lease.replaced then
        restore(m, id, lease)
      else
        count_as_lost(m, id, lease, 'the lease ran out')
      end
    end
    finish(m)
    add_dead_topics(m, dead)
    left, jobs = left - #ids, jobs + #ids
  end
  local next_deadline = call('ZRANGE', base .. 'l:' .. topic, 0, 0, 'WITHSCORES')[2]
  call('ZREM', base .. 'end', topic)
  if next_deadline then call('ZADD', base .. 'end', next_deadline, topic) end
end
return { jobs, tonumber(call('ZRANGE', base .. 'end', 0, 0, 'WITHSCORES')[2] or -1), now, call('EXISTS', base .. 'out'), unpack(dead) }
