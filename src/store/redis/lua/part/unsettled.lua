-- Ends live jobs that were not settled: they are deleted or replaced. Needs: clock, leases, places, history.

-- Notes that a live job ends now. `delayed` and `ready` are its scores, and `packed` is its lease; only one of these is
-- there. `record` is what is stored of it, if the caller knows that.
local function ends_unsettled(m, id, ending, delayed, ready, packed, record)
  local noted = call('HGET', base .. 'm:' .. m.topic, id)
  local due, attempts, log = 0, noted and struct.unpack('>I4', noted) or 0, noted and string.sub(noted, 6) or ''
  if delayed then
    due = from_delayed(tonumber(delayed))
  elseif ready then
    due = from_ready(tonumber(ready))
  elseif packed then
    local lease = lease_of(packed)
    due, attempts = lease.due, lease.replaced and attempts or lease.attempts
  end
  ends(m, id, ending, due, attempts, log, 0, record)
end
