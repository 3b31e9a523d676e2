--@ use shard
-- Writes the set of nodes of a shard. docs/internals/NODES.md has the rules.
--
-- KEYS  1 the shard's base
-- ARGV  1 what is done
--         stamp  a shard without a set gets this set, if the shard is empty or if 3 is '1'
--         fence  this set is written if the shard has no later set. 3: the number of the open set before this set.
--                4: '1' if the node was a home in that open set. With '1', the shard is marked as older if its own set
--                is none of these three: this set, the open set 3, a set that moves jobs away from the open set 3.
--                Without '1', the mark is removed
--         open   this set is written if the shard has the set 3. After that, no lease expires for 10 seconds
--       2 the set
-- Returns the set that the shard has afterwards; '' for none
--
-- Changes the state of no job.

local what, set, key = ARGV[1], ARGV[2], base .. 'set'
local own = call('GET', key) or ''
if what == 'stamp' then
  if own == '' and (ARGV[3] == '1' or call('EXISTS', base .. 'due') == 0) then own = set end
  if own == set then call('SET', key, set) end
elseif what == 'fence' then
  local number, from = string.match(own, '^(%d+)'), string.match(own, '^%d+ %x+ %S+ (%d+)')
  if tonumber(number or 0) > tonumber(string.match(set, '^%d+')) then return own end
  if ARGV[4] == '1' and own ~= set and (number or '0') ~= ARGV[3] and from ~= ARGV[3] then
    call('SET', base .. 'older', 1)
  end
  if ARGV[4] ~= '1' then call('DEL', base .. 'older') end
  own = set
  -- The set is written even if the shard has this set already, because the caller waits until the replicas have this
  -- write.
  call('SET', key, set)
elseif own == ARGV[3] then
  own = set
  call('SET', key, set)
  call('SET', base .. 'grace', 1, 'PX', 10000)
end
return own
