--@ use shard fence seek meter latest_letters dead_letters
-- Removes dead letters, each named by its id and the time of its death. Other letters of these ids stay.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 topic   then for each letter: id, when it died in ms
-- Returns how many it removed, and 1 or 0. 1: the same call must be made again, because many other letters of an id
-- have to be moved.
--
-- Moves a job: dead -> nothing

local letter_hash, letters = base .. 'X:' .. ARGV[1], base .. 'x:' .. ARGV[1]
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
    local out = take_out(letter_hash, letters, id, members)
    n = n + out
    if out < #members then return { n, 1 } end
  end
end
return { n, 0 }
