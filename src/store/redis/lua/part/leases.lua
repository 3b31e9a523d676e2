-- A lease as L: keeps it: token (20 bytes), due_ms (6), priority and marks (1), attempts with this one (4), attempts
-- that were forgiven (1), limit of attempts (4), zeros (29), owner (the rest; of a hidden job: when it was hidden, in
-- decimal). The zeros make it longer than 64 bytes: Redis then finds a lease in a table, and not by going through a list.
local TOKEN, OWNER = 20, 66
local ZEROS = string.rep('\0', 29)
-- Marks, beside the priority's two bits. NOTED: m: has something of the job. REPLACED: the record is a replacement's,
-- and so are due and priority. HIDDEN: nobody's lease; the job is on its way to its home.
local NOTED, REPLACED, HIDDEN = 4, 8, 16

local function lease_of(packed)
  local due, bits, attempts, crashes, limit = struct.unpack('>I6BI4BI4', packed, TOKEN + 1)
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
    owner = string.sub(packed, OWNER),
  }
end
