--@ use shard seek graves
-- Removes dead letters, each named by its id and when it died; others of their ids stay.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic   then for each: id, when it died in ms
-- Gives how many it removed, and 1 if it is to be called with the same again, because many others of an id have to be moved, else 0
--
-- Moves a job: dead -> nothing

local graves, letters = base .. 'X:' .. ARGV[1], base .. 'x:' .. ARGV[1]
local ids, died, n = {}, {}, 0
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  if not died[id] then
    ids[#ids + 1], died[id] = id, {}
  end
  died[id][ARGV[i + 1]] = true
end
for _, id in ipairs(ids) do
  if room <= 0 then return { n, 1 } end
  local members = {}
  for at in pairs(died[id]) do members[#members + 1] = letter_of(letters, id, at) end
  if members[1] then
    local out = take_out(graves, letters, id, members)
    n = n + out
    if out < #members then return { n, 1 } end
  end
end
return { n, 0 }
