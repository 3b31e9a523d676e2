--@ use clock fence
-- Reads entries of the outbox: what must follow jobs that have ended on this shard. `out` has the entries by their
-- numbers. The number of an entry is about the time (us) when the entry was written. `outn` is the last number.
-- `outset` is the set of nodes under which entries were last sent. `outowner` is the name of the sender that sends
-- entries now.
--
-- An entry: its number (7 bytes), its kind (1), the job that has ended: length of its topic (2), topic, length of its
-- id (2), id; when it was added, us (7); a place (1), and the rest: see part/history.lua.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 the number after which the entries begin   2 how many entries at most   3 about how many bytes at most
--       4 the name of the sender   5 for how many ms no other sender may send
-- Returns -1, the time in us, `outset`, and the entries; or for how many ms only another sender may send
--
-- Changes the state of no job.

local owner = call('GET', base .. 'outowner')
if owner and owner ~= ARGV[4] then return { math.max(1, call('PTTL', base .. 'outowner')) } end
local found = call('ZRANGE', base .. 'out', '(' .. ARGV[1], '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2])
if not found[1] then
  call('DEL', base .. 'outowner')
  return { -1, now_us, call('GET', base .. 'outset') or '' }
end
-- The first write must be a removal, for a server with full memory: see moves.
call('DEL', base .. 'outowner')
call('SET', base .. 'outowner', ARGV[4], 'PX', ARGV[5])
local out, bytes = { -1, now_us, call('GET', base .. 'outset') or '' }, 0
for _, entry in ipairs(found) do
  bytes = bytes + #entry
  if bytes > tonumber(ARGV[3]) and out[4] then break end
  out[#out + 1] = entry
end
return out
