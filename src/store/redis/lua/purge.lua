--@ use clock fence bells scores places meter numbered moves leases history unsettled
-- Removes a topic's jobs in one state, in the order of the zset of this state. (The script `list` returns ready jobs
-- with numbers as priorities in another order.)
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 topic   2 state (1 to 4)   3 how many at most
--       4 optional, for dead letters: the minimum time since their death, in ms
-- Returns how many jobs it removed, and 1 if there are more, else 0
--
-- Moves a job: that state -> nothing

local topic, state = ARGV[1], tonumber(ARGV[2])
local order = base .. ({ 'd:', 'r:', 'l:', 'x:' })[state] .. topic
local members
if ARGV[4] then
  members = call('ZRANGE', order, '-inf', text(now - tonumber(ARGV[4])), 'BYSCORE', 'LIMIT', 0, ARGV[3])
else
  members = call('ZRANGE', order, 0, tonumber(ARGV[3]) - 1)
end
if members[1] then
  if state == 4 then
    remove('X:', topic, members)
  else
    local m, leases = moves(topic), {}
    if state == 3 then
      leases = call('HMGET', base .. 'L:' .. topic, unpack(members))
      for i, packed in ipairs(leases) do unlease(m, members[i], lease_of(packed)) end
    end
    for i, id in ipairs(members) do
      local score = state < 3 and call('ZSCORE', order, id) or nil
      if state == 2 then leave_order(m, id, score) end
      ends_unsettled(m, id, DELETED, state == 1 and score, state == 2 and score, leases[i])
      add(m, 'gone', id)
      add(m, 'forgotten', id)
    end
    make(m)
    keep(m)
  end
  call('ZREM', order, unpack(members))
end
return { #members, call('EXISTS', order) }
