-- Ends live jobs that were not settled: they are deleted or replaced. Needs: clock, leases, places, history.

-- Notes that a live job ends now. `delayed` and `ready` are its scores, and `packed` is its lease. Only one of these
-- three is set. `record` is the stored record of the job, if the caller has it. `note` says why the job was removed.
-- This text becomes a line of the log with the attempt number 0.
local function ends_unsettled(m, id, ending, delayed, ready, packed, record, note)
  local noted = call('HGET', base .. 'm:' .. m.topic, id)
  local due, attempts, log = 0, noted and struct.unpack('>I4', noted) or 0, noted and string.sub(noted, 6) or ''
  if note and note ~= '' then
    log = log .. string.format('{"number":0,"at_ms":%.0f,"took_ms":0,"error":%s}\n', now, cjson.encode(note))
  end
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
