--@ use shard seek
-- Lists a page of a topic's records: the last record of each id. The records of jobs that ended last come first.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic   2 and 3 where the page before ended; '' and '' for the first
--       4 how many records at most   5 how many bytes at most
-- Returns an array: where this page ended (two values; '' and '' if it is the last page), then for each record the id
-- and the record, as part/history.lua describes it
--
-- Changes the state of no job.

local order, hash = base .. 'h:' .. ARGV[1], base .. 'H:' .. ARGV[1]
local n, bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local before = call('ZCARD', order)
if ARGV[2] ~= '' then
  before = rank_after(order, ARGV[2], ARGV[3])
  if tonumber(call('ZSCORE', order, ARGV[3])) == tonumber(ARGV[2]) then before = before - 1 end
end
local out = { '', '' }
if before == 0 then return out end
local found = call('ZRANGE', order, math.max(0, before - n), before - 1, 'WITHSCORES')
for i = #found - 1, 1, -2 do
  local id = found[i]
  local records = call('HGET', hash, id) or ''
  local at, last = 1, 1
  while at <= #records do
    last = at
    at = at + 4 + struct.unpack('>I4', records, at)
  end
  out[#out + 1], out[#out + 2] = id, string.sub(records, last)
  bytes = bytes - #records
  if i > 1 and bytes <= 0 or i == 1 and before > n then
    out[1], out[2] = found[i + 1], id
    break
  end
end
return out
