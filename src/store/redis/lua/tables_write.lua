--@ use shard
-- Changes the shared tables, if no other process has changed the guarding table since the caller read it.
-- docs/internals/REGISTRY.md has the reasons.
--
-- KEYS  1 the base of the node's first shard
-- ARGV  1 the first table. Without it there are no shared tables
--       2 the guarding table. Its field 'version' changes with each change
--       3 the version that the caller has read; '' for none: the guarding table is not there
--       4 the next version; '' for none: the guarding table is not written
--       5 the changes, one after the other:
--         'set', table, field, value   writes a field
--         'remove', table, field       removes a field
--         'drop', table                removes a table
-- Returns 1 if all changes were made, 0 if there is another version, -1 if there are no shared tables, or the name of
-- the node to which the tables are being moved
--
-- Changes the state of no job.

local first, guard = base .. ARGV[1], base .. ARGV[2]
-- A call that writes the mark of a move has no next version, so it is not refused here.
local goal = call('HGET', first, 'moves_to')
if goal and ARGV[4] ~= '' then return goal end
if ARGV[1] ~= ARGV[2] and call('EXISTS', first) == 0 then return -1 end
if (call('HGET', guard, 'version') or '') ~= ARGV[3] then return 0 end
local at = 5
while at <= #ARGV do
  local what, key = ARGV[at], base .. ARGV[at + 1]
  if what == 'set' then
    call('HSET', key, ARGV[at + 2], ARGV[at + 3])
    at = at + 4
  elseif what == 'remove' then
    call('HDEL', key, ARGV[at + 2])
    at = at + 3
  else
    call('DEL', key)
    at = at + 2
  end
end
if ARGV[4] ~= '' then call('HSET', guard, 'version', ARGV[4]) end
return 1
