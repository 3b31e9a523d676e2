--@ use shard fence
-- Lists the ids of a topic's live jobs, of its dead letters, or of its records, some at a time and without their
-- bodies.
--
-- KEYS  1 the shard's base   2 the base, followed by the set: see fence
-- ARGV  1 topic   2 'b' for live jobs, 'X' for dead letters, 'H' for records   3 the cursor: '0' at first
--       4 about how many
-- Returns an array: the next cursor ('0' at the end), then ids. An id that is there the whole time is returned at least
-- once
--
-- Changes the state of no job.

local scan = call('HSCAN', base .. ARGV[2] .. ':' .. ARGV[1], ARGV[3], 'COUNT', ARGV[4])
local out = { scan[1] }
for i = 1, #scan[2], 2 do
  local name = scan[2][i]
  if ARGV[2] ~= 'X' then
    out[#out + 1] = name
  elseif string.sub(name, -4) == '\0\0\0\0' then
    -- This is the latest dead letter of its id: endings.lua says how dead letters are numbered.
    out[#out + 1] = string.sub(name, 1, -5)
  end
end
return out
