--@ use clock fence bells scores records leases meter numbered moves
-- Takes over live jobs from another shard, unchanged, with their leases.
--
-- KEYS  1 the base of the jobs' home shard   2 the base, followed by the set: see fence
-- ARGV  1 what happens to a job that this shard has under the same id
--         replace  it is removed
--         newer    of the two jobs, the one that was added later stays
--         absent   it stays, and the job of the other shard is not taken over
--       2 the shard that has the jobs   3 topic
--       then for each job: id, record, notes, state, score, lease, as move_take returns them
--         or, for a job that has ended on that shard: id, its stamp, and four times ''. If this shard has a job under
--         this id with an earlier stamp, that job is then removed
-- Returns how many jobs it has taken over
--
-- Moves a job: nothing -> delayed, ready, leased. A job that is removed: delayed, ready, leased -> nothing

local rule, topic, taken = ARGV[1], ARGV[3], 0
-- Early releases had no sets. The last of these releases wrote under this key which jobs it moved to this shard. These
-- jobs must not be moved here a second time.
local put = base .. 'put:' .. ARGV[2]
local has_order = call('EXISTS', base .. 'q:' .. topic) == 1

for i = 4, #ARGV, 6 do
  local id, record, noted, state, score, packed =
    ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local own, goes, comes = call('HGET', base .. 'b:' .. topic, id), true, state ~= ''
  if rule == 'absent' then
    goes = not own
    comes = goes
  elseif rule == 'newer' then
    local stamp = comes and stamp_of(record) or tonumber(record)
    goes = not own or stamp_of(own) < stamp
    comes = comes and (goes or stamp_of(own) == stamp) and tonumber(call('HGET', put, topic .. '\0' .. id) or -1) < stamp
    goes = goes or comes
  end
  if own and goes then
    local m, lease = moves(topic), call('HGET', base .. 'L:' .. topic, id)
    add(m, 'from_delayed', id)
    add(m, 'from_ready', id)
    local ready = has_order and call('ZSCORE', base .. 'r:' .. topic, id)
    if ready then leave_order(m, id, ready) end
    if lease then unlease(m, id, lease_of(lease)) end
    add(m, 'gone', id)
    add(m, 'forgotten', id)
    make(m)
  end
  if comes then
    taken = taken + 1
    local m = moves(topic)
    add(m, 'records', id, record)
    if noted ~= '' then add(m, 'notes', id, noted) end
    if state == 'd' then
      m.earliest = tonumber(score)
      add(m, 'delayed', score, id)
    elseif state == 'r' then
      add(m, 'ready', score, id)
      if tonumber(score) < LEVELS then add(m, 'queued', id, tonumber(score)) end
      has_order = has_order or m.queued ~= nil
    end
    make(m)
    if state == 'l' then
      local deadline = now + score
      call('ZADD', base .. 'l:' .. topic, text(deadline), id)
      call('HSET', base .. 'L:' .. topic, id, packed)
      lower('end', topic, deadline)
      local owner = lease_of(packed).owner
      if owner ~= '' then call('SADD', base .. 'o:' .. owner, topic .. '\0' .. id) end
      -- Each topic that ever had a job must be in `due`, so that the script `counts` finds the topic.
      call('ZADD', base .. 'due', 'NX', 'inf', topic)
    end
    if #record > 65536 then call('SADD', base .. 'big', topic) end
  end
end
return taken
