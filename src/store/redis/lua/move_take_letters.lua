--@ use shard fence seek meter latest_letters dead_letters
-- Returns the dead letters of an id, the oldest first, some at a time.
--
-- KEYS  1 the shard's base   2 the base, followed by the set: see fence
-- ARGV  1 topic   2 id   3 the number of the first letter: '1' at first   4 how many at most   5 how many bytes at most
-- Returns the number of the next letter ('0' at the end), then for each letter two values: when it died in ms, and what
-- is stored of it
--
-- Changes the state of no job.

local letter_hash, letters, id = base .. 'X:' .. ARGV[1], base .. 'x:' .. ARGV[1], ARGV[2]
local latest = call('HGET', letter_hash, id .. ZERO)
if not latest then return { '0' } end
local top, bytes = struct.unpack('>I4', latest, 7) + 1, tonumber(ARGV[5])
local first = math.max(tonumber(ARGV[3]), lowest(letter_hash, id, top))
local last = math.min(top, first + ARGV[4] - 1)
local out = { last < top and tostring(last + 1) or '0' }
for number = first, last do
  local name = number == top and id .. ZERO or numbered(id, number)
  local letter = call('HGET', letter_hash, name)
  bytes = bytes - #letter
  if bytes < 0 and number > first then
    out[1] = tostring(number)
    break
  end
  out[#out + 1] = call('ZSCORE', letters, name)
  out[#out + 1] = letter
end
return out
