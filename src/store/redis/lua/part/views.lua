-- What is told of a job: seven values, flat: id, state (1 delayed, 2 ready, 3 leased, 4 dead), due in ms, the lease's
-- deadline or when it died in ms (else -1), attempts that count, log, record. Needs: clock or `call` and `base`, scores,
-- leases.

-- A dead letter as X: keeps it: due of its last attempt (6), the number of the one before it of that id (4), attempts
-- (4), the log's length (4), the log, the record.
local function grave_of(packed)
  local due, older, attempts, length, rest = struct.unpack('>I6I4I4I4', packed)
  return {
    due = due,
    older = older,
    attempts = attempts,
    log = string.sub(packed, rest, rest + length - 1),
    record = string.sub(packed, rest + length),
  }
end

local function view(out, id, state, due, till, attempts, log, record)
  local n = #out
  out[n + 1], out[n + 2], out[n + 3], out[n + 4] = id, state, due, till
  out[n + 5], out[n + 6], out[n + 7] = attempts, log, record
end

-- `score`: the place in the state's zset. `packed`: of a delayed or ready job its record, of a leased one also the lease,
-- of a dead letter the grave. `noted`: m:'s value.
local function view_of(out, id, state, score, packed, noted, lease)
  score = tonumber(score)
  local attempts, log = 0, ''
  if noted then
    attempts = struct.unpack('>I4', noted)
    log = string.sub(noted, 6)
  end
  if state == 1 then
    view(out, id, 1, (from_delayed(score)), -1, attempts, log, packed)
  elseif state == 2 then
    view(out, id, 2, (from_ready(score)), -1, attempts, log, packed)
  elseif state == 3 then
    lease = lease_of(lease)
    view(out, id, 3, lease.due, score, lease.attempts, log, packed)
  else
    local grave = grave_of(packed)
    view(out, id, 4, grave.due, score, grave.attempts, grave.log, grave.record)
  end
end
