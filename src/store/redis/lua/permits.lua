--@ use clock
-- Grants permits to begin callbacks. Each permit is for a callback of a topic that has limits, or for a callback to a
-- host that has limits. This shard is the home of these topics and hosts. A host has a name that no topic has: 'host:'
-- and the host. Below, "topic" also means such a host.
--
-- KEYS  1 the shard's base
-- ARGV  1 the owner's tag   2 for how long the owner's permits are remembered, ms
--       then for each topic: topic, how many permits the owner holds, how many more it wants, how many all owners may
--         hold together ('' no limit), the microseconds from one start to the next ('' no rate), how many may start at
--         once, how many of the permits granted before were not used
-- Returns for each topic: how many permits are granted, and in how many ms the rate allows more (-1: the rate is not
-- the limit)
--
-- Changes the state of no job.

local owner, out = ARGV[1], {}
for i = 3, #ARGV, 7 do
  local topic, held, want, again = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), -1
  local most, step = tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])
  local flying = base .. 'f:' .. topic
  -- A removal comes first: see moves.
  call('HDEL', flying, owner)
  if most then
    local others, all = 0, call('HGETALL', flying)
    for k = 1, #all, 2 do
      local n, till = string.match(all[k + 1], '^(%d+) (%d+)$')
      till = tonumber(till)
      if till <= now then
        call('HDEL', flying, all[k])
      else
        others = others + n
        -- If the clock was set back meanwhile, the stored end is too late. Then the stored end is replaced by the end
        -- that permits get when they are reported now.
        if till > now + ARGV[2] then call('HSET', flying, all[k], string.format('%d %.0f', n, now + ARGV[2])) end
      end
    end
    want = math.max(0, math.min(want, most - held - others))
  end
  if step then
    -- The same calculation as in TokenBucket::take in src/model/flow.rs.
    local burst, unused = tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6])
    local full = burst * step
    local spent = (tonumber(call('HGET', base .. 'rates', topic) or 0)) - unused * step
    spent = math.min(math.max(spent, now_us), now_us + full)
    local granted = math.min(want, math.floor((now_us + full - spent) / step + 0.001))
    spent = spent + granted * step
    if granted < want then
      local next_ones = math.min(want - granted, math.max(1, math.floor(burst / 2)))
      again = math.max(1, math.ceil((spent + next_ones * step - now_us - full) / 1000))
    end
    call('HSET', base .. 'rates', topic, string.format('%.2f', spent))
    want = granted
  end
  if most and held + want > 0 then
    call('HSET', flying, owner, string.format('%d %.0f', held + want, now + ARGV[2]))
    call('PEXPIRE', flying, ARGV[2] * 2)
    call('SADD', base .. 'flying', topic)
  end
  out[#out + 1] = want
  out[#out + 1] = again
end
return out
