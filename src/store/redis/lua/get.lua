--@ use shard fence places leases views
-- Returns the live job of an id. If there is no live job, returns the latest dead letter of the id.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 topic   2 id
-- Returns the values that part/views.lua describes, or nothing
--
-- Changes the state of no job.

local topic, id = ARGV[1], ARGV[2]
local out = {}
local record = call('HGET', base .. 'b:' .. topic, id)
if record then
  local noted = call('HGET', base .. 'm:' .. topic, id)
  for state, prefix in ipairs({ 'd:', 'r:', 'l:' }) do
    local score = call('ZSCORE', base .. prefix .. topic, id)
    if score then
      local lease = state == 3 and call('HGET', base .. 'L:' .. topic, id)
      view_of(out, id, state, score, record, noted, lease)
      break
    end
  end
else
  local latest = id .. '\0\0\0\0'
  local letter = call('HGET', base .. 'X:' .. topic, latest)
  if letter then view_of(out, id, 4, call('ZSCORE', base .. 'x:' .. topic, latest), letter) end
end
return out
