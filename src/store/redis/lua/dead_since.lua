--@ use shard places leases views sizes
-- Returns a topic's dead letters that died at a given moment or later, the latest first.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic   2 the moment, Unix ms   3 how many at most   4 how many bytes of big bodies at most
-- Returns an array: for each job the values that part/views.lua describes
--
-- Changes the state of no job.

local topic = ARGV[1]
local bodies = base .. 'X:' .. topic
local found = call('ZREVRANGEBYSCORE', base .. 'x:' .. topic, '+inf', ARGV[2], 'WITHSCORES', 'LIMIT', 0, ARGV[3])
if not found[1] then return {} end
local members = {}
for i = 1, #found / 2 do members[i] = found[2 * i - 1] end
local n = fitting(topic, bodies, members, tonumber(ARGV[4]))
for i = n + 1, #members do members[i] = nil end
local records = call('HMGET', bodies, unpack(members))
local out = {}
for i, member in ipairs(members) do
  view_of(out, string.sub(member, 1, -5), 4, found[2 * i], records[i])
end
return out
