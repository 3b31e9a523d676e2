--@ use clock fence bells scores leases meter numbered moves
-- Removes live jobs in any state from a shard, because their home shard has them now.
--
-- KEYS  1 the base of the shard that had them   2 the base, followed by the set: see fence
-- ARGV  1 topic   then ids
-- Returns how many jobs it has removed
--
-- Moves a job: delayed, ready, leased -> nothing

local topic, m, dropped = ARGV[1], moves(ARGV[1]), 0
local has_order = call('EXISTS', base .. 'q:' .. topic) == 1
for i = 2, #ARGV do
  local id = ARGV[i]
  local lease = call('HGET', base .. 'L:' .. topic, id)
  dropped = dropped + call('HEXISTS', base .. 'b:' .. topic, id)
  add(m, 'from_delayed', id)
  local score = has_order and call('ZSCORE', base .. 'r:' .. topic, id)
  add(m, 'from_ready', id)
  if score then leave_order(m, id, score) end
  if lease then unlease(m, id, lease_of(lease)) end
  add(m, 'gone', id)
  add(m, 'forgotten', id)
end
make(m)
return dropped
