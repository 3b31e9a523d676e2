--@ use shard
-- Notes for which set of nodes all jobs of this node have been looked at, if the note is still what it was when it was read.
--
-- KEYS  1 the base of the node's first shard
-- ARGV  1 what it was; '' for none   2 what it is from now on
-- Gives 1 if it was
--
-- Moves nothing.

if (call('GET', base .. 'map') or '') ~= ARGV[1] then return 0 end
call('SET', base .. 'map', ARGV[2])
return 1
