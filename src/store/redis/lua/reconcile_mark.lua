--@ use shard records
-- Notes that live jobs are to be moved to another node, which is their home by now.
--
-- KEYS  1 the base of the shard that holds them
-- ARGV  1 the home node   2 topic, then ids
-- Gives how many there are
--
-- Moves nothing.

local marked = 0
for i = 3, #ARGV do
  local record = call('HGET', base .. 'b:' .. ARGV[2], ARGV[i])
  if record then
    call('HSET', base .. 'stray:' .. ARGV[1], ARGV[2] .. '\0' .. ARGV[i], string.format('%.0f', stamp_of(record)))
    marked = marked + 1
  end
end
return marked
