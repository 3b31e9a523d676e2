-- A job as scripts return it, in eight values: id, state (1 delayed, 2 ready, 3 leased, 4 dead), due time in ms, the
-- deadline of the lease or the time of death in ms (otherwise -1), attempts that count, log, record, and who has
-- reserved it, in the form of src/store/reserver.rs ('' if this is not known). Needs: places, leases.

-- Reads a dead letter (a value of X:). The layout: due time of its last attempt (6 bytes), the number of the previous
-- letter of the same id (4), attempts (4), length of the log (4), the log, the record.
local function parse_letter(packed)
  local due, older, attempts, length, rest = struct.unpack('>I6I4I4I4', packed)
  return {
    due = due,
    older = older,
    attempts = attempts,
    log = string.sub(packed, rest, rest + length - 1),
    record = string.sub(packed, rest + length),
  }
end

local function view(out, id, state, due, till, attempts, log, record, reserver)
  local n = #out
  out[n + 1], out[n + 2], out[n + 3], out[n + 4] = id, state, due, till
  out[n + 5], out[n + 6], out[n + 7], out[n + 8] = attempts, log, record, reserver or ''
end

-- Adds the values of a job to `out`. `score` is the job's score in the zset of its state. `packed` is the record, or
-- for a dead letter the value of X:. `noted` is the value of m:. `lease` is the value of L:, if the job is leased.
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
    view(out, id, 3, lease.due, score, lease.attempts, log, packed, lease.reserver)
  else
    local letter = parse_letter(packed)
    view(out, id, 4, letter.due, score, letter.attempts, letter.log, letter.record)
  end
end
