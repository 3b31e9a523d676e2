--@ use shard fence seek meter latest_letters dead_letters
-- Counts or removes the dead letters of some ids. If an id has a live job again, that job stays.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 topic   2 'count' or 'remove'   then ids
-- Returns how many letters there were, and 1 if some are left because there are very many, else 0
--
-- Moves a job: dead -> nothing ('remove'). 'count' changes the state of no job.

-- One call removes about this many letters at most.
local MOST = 2048

local letter_hash, letters = base .. 'X:' .. ARGV[1], base .. 'x:' .. ARGV[1]
local removes, n, left = ARGV[2] == 'remove', 0, 0

for i = 3, #ARGV do
  local id = ARGV[i]
  local latest = id .. '\0\0\0\0'
  local letter = call('HGET', letter_hash, latest)
  if letter then
    local older = struct.unpack('>I4', letter, 7)
    if not removes then
      n = n + older + 2 - lowest(letter_hash, id, older + 1)
    elseif n >= MOST then
      left = 1
    else
      while older > 0 and n < MOST do
        local names = {}
        for number = older, math.max(1, older - 255), -1 do names[#names + 1] = id .. struct.pack('>I4', number) end
        call('ZREM', letters, unpack(names))
        local gone = remove('X:', ARGV[1], names)
        n, older = n + gone, older - #names
        if gone < #names then older = 0 end
      end
      if older > 0 then
        call('HSET', letter_hash, latest, string.sub(letter, 1, 6) .. struct.pack('>I4', older) .. string.sub(letter, 11))
        left = 1
      else
        call('ZREM', letters, latest)
        n = n + remove('X:', ARGV[1], { latest })
      end
    end
  end
end
return { n, left }
