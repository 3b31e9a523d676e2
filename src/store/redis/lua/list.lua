--@ use shard places leases views seek sizes
-- Lists a page of a topic's jobs in one state: delayed jobs by due time, ready jobs by priority and due time, leased
-- jobs by deadline, dead letters by the time of death.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic   2 state (1 to 4)   3 and 4 where the page before ended; '' and '' for the first
--       5 how many jobs at most   6 how many bytes of big bodies at most
-- Returns an array: where this page ended (two values; '' and '' if it is the last page), then for each job the values
-- that part/views.lua describes
--
-- Moves nothing.

local topic, state = ARGV[1], tonumber(ARGV[2])
local order = base .. ({ 'd:', 'r:', 'l:', 'x:' })[state] .. topic
local bodies = base .. (state == 4 and 'X:' or 'b:') .. topic
local first = rank_after(order, ARGV[3], ARGV[4])
local found = call('ZRANGE', order, first, first + tonumber(ARGV[5]) - 1, 'WITHSCORES')
if not found[1] then return { '', '' } end
local members, notes, leases = {}, {}, {}
for i = 1, #found / 2 do members[i] = found[2 * i - 1] end
local n = fitting(topic, bodies, members, tonumber(ARGV[6]))
for i = n + 1, #members do members[i] = nil end
local records = call('HMGET', bodies, unpack(members))
if state < 4 then notes = call('HMGET', base .. 'm:' .. topic, unpack(members)) end
if state == 3 then leases = call('HMGET', base .. 'L:' .. topic, unpack(members)) end
local out = { '', '' }
if first + n < call('ZCARD', order) then out = { found[2 * n], found[2 * n - 1] } end
for i, member in ipairs(members) do
  local id = state == 4 and string.sub(member, 1, -5) or member
  view_of(out, id, state, found[2 * i], records[i], notes[i], leases[i])
end
return out
