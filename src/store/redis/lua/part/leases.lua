-- A lease as L: keeps it: token (20 bytes), due_ms (6), priority and marks (1), attempts with this one (4), attempts
-- that were forgiven (1), limit of attempts (4), owner (the rest; of a hidden job: when it was hidden, in decimal).
local TOKEN = 20
-- Marks, beside the priority's two bits. NOTED: m: has something of the job. REPLACED: the record is a replacement's,
-- and so are due and priority. HIDDEN: nobody's lease; the job is on its way to its home.
local NOTED, REPLACED, HIDDEN = 4, 8, 16

local function lease_of(packed)
  local due, bits, attempts, crashes, limit, rest = struct.unpack('>I6BI4BI4', packed, TOKEN + 1)
  return {
    token = string.sub(packed, 1, TOKEN),
    due = due,
    rank = bits % 4,
    noted = bits % (2 * NOTED) >= NOTED,
    replaced = bits % (2 * REPLACED) >= REPLACED,
    hidden = bits >= HIDDEN,
    attempts = attempts,
    crashes = crashes,
    limit = limit,
    owner = string.sub(packed, rest),
  }
end

-- The lease of a job that was replaced while it is held.
local function replaced(packed, due, rank)
  local hidden = string.byte(packed, TOKEN + 7) >= HIDDEN and HIDDEN or 0
  local limit_on = string.sub(packed, TOKEN + 13)
  return string.sub(packed, 1, TOKEN) .. struct.pack('>I6BI4B', due, rank + REPLACED + hidden, 0, 0) .. limit_on
end
