--@ use shard scores
-- Counts the delayed jobs of some topics by the time when they become due.
--
-- KEYS  1 the shard's base
-- ARGV  1 how many topics   then the topics   then moments in ms, ascending
-- Returns how many jobs become due between each moment and the next
--
-- Changes the state of no job.

local topics, out = tonumber(ARGV[1]), {}
for i = topics + 2, #ARGV - 1 do
  local from, to, sum = text(ARGV[i] * 4), '(' .. text(ARGV[i + 1] * 4), 0
  for t = 2, topics + 1 do sum = sum + call('ZCOUNT', base .. 'd:' .. ARGV[t], from, to) end
  out[#out + 1] = sum
end
return out
