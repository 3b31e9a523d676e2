-- A lease is a value of L:. Its fields, each with its number of bytes: token (20), due_ms (6), rank and marks (1),
-- number of attempts including the current one (4), number of attempts that did not count because their process died
-- (1), limit of attempts (4), when the job was added, in us (7; 0 if the previous release made the lease), zeros (22),
-- owner (the rest). If the lease has no owner, the owner field is empty, or begins with a zero byte. The client that
-- has reserved the job follows this byte, in the form of src/store/reserver.rs. The 22 zeros make the value longer than
-- 64 bytes. So Redis stores the leases in a hash table, and does not search a list for a lease.
local TOKEN, OWNER = 20, 66
local ZEROS = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
-- The marks are in the same byte as the rank, above the two bits of the rank. NOTED: m: has notes of the job.
-- WAS_REPLACED: the job was replaced during the lease, and record, due time and rank are those of the replacement.
local NOTED, WAS_REPLACED = 4, 8

local function lease_of(packed)
  local due, bits, attempts, crashes, limit, stamp = struct.unpack('>I6BI4BI4I7', packed, TOKEN + 1)
  local named = string.byte(packed, OWNER) == 0
  return {
    token = string.sub(packed, 1, TOKEN),
    due = due,
    rank = bits % 4,
    noted = bits % (2 * NOTED) >= NOTED,
    replaced = bits % (2 * WAS_REPLACED) >= WAS_REPLACED,
    attempts = attempts,
    crashes = crashes,
    limit = limit,
    stamp = stamp,
    owner = named and '' or string.sub(packed, OWNER),
    reserver = named and string.sub(packed, OWNER + 1) or '',
  }
end
