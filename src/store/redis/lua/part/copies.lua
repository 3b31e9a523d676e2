-- Letting go of a job of which there is a newer copy elsewhere. Needs: clock, bells, scores, leases, moves.

-- Removes a live job in whichever state it is.
local function let_go(topic, id)
  local m = moves(topic)
  local packed = call('HGET', base .. 'L:' .. topic, id)
  add(m, 'from_delayed', id)
  add(m, 'from_ready', id)
  if packed then unlease(m, id, lease_of(packed)) end
  add(m, 'gone', id)
  add(m, 'forgotten', id)
  make(m)
end
