--@ use shard graves
-- Removes dead letters, each named by its id and when it died; others of their ids stay.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic   then for each: id, when it died in ms
-- Gives how many it removed
--
-- Moves a job: dead -> nothing

local graves, letters, n = base .. 'X:' .. ARGV[1], base .. 'x:' .. ARGV[1], 0
for i = 2, #ARGV, 2 do
  local name = letter_of(graves, letters, ARGV[i], tonumber(ARGV[i + 1]))
  if name then
    take_out(graves, letters, ARGV[i], name)
    n = n + 1
  end
end
return n
