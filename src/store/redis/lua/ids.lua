--@ use shard
-- Lists the ids of a topic's live jobs, some at a time and without their bodies.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic   2 where to go on: '0' at first   3 about how many
-- Gives an array: where to go on ('0' when it is done), then ids. One that is there all the while is told at least once
--
-- Moves nothing.

local scan = call('HSCAN', base .. 'b:' .. ARGV[1], ARGV[2], 'COUNT', ARGV[3])
local out = { scan[1] }
for i = 1, #scan[2], 2 do out[#out + 1] = scan[2][i] end
return out
