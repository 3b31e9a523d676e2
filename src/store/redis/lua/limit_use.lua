--@ use clock
-- Shows how far the limits of topics, or of hosts, are used. This shard is the home of these topics and hosts.
--
-- KEYS  1 the shard's base
-- ARGV  the names, as in permits
-- Returns the time in microseconds, then for each name: how many permits all owners hold, and the time up to which the
-- callbacks begun so far have used up the rate, in microseconds (`spent_us` in src/model/flow.rs)
--
-- Changes the state of no job.

local out = { string.format('%.0f', now_us) }
for i = 1, #ARGV do
  local held, all = 0, call('HGETALL', base .. 'f:' .. ARGV[i])
  for k = 2, #all, 2 do
    local n, till = string.match(all[k], '^(%d+) (%d+)$')
    if tonumber(till) > now then held = held + n end
  end
  out[#out + 1] = held
  out[#out + 1] = call('HGET', base .. 'rates', ARGV[i]) or '0'
end
return out
