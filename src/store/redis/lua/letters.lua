--@ use shard seek graves
-- Counts or removes the dead letters of some ids, also of those whose id is live again; the live job stays.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic   2 'count' or 'remove'   then ids
-- Gives how many there were, and 1 if some are left because there are very many, else 0
--
-- Moves a job: dead -> nothing, or nothing

-- So many letters are removed at most, by and large.
local MOST = 2048

local graves, letters = base .. 'X:' .. ARGV[1], base .. 'x:' .. ARGV[1]
local removes, n, left = ARGV[2] == 'remove', 0, 0

for i = 3, #ARGV do
  local id = ARGV[i]
  local latest = id .. '\0\0\0\0'
  local grave = call('HGET', graves, latest)
  if grave then
    local older = struct.unpack('>I4', grave, 7)
    if not removes then
      n = n + older + 2 - lowest(graves, id, older + 1)
    elseif n >= MOST then
      left = 1
    else
      while older > 0 and n < MOST do
        local names = {}
        for number = older, math.max(1, older - 255), -1 do names[#names + 1] = id .. struct.pack('>I4', number) end
        call('ZREM', letters, unpack(names))
        local gone = call('HDEL', graves, unpack(names))
        n, older = n + gone, older - #names
        if gone < #names then older = 0 end
      end
      if older > 0 then
        call('HSET', graves, latest, string.sub(grave, 1, 6) .. struct.pack('>I4', older) .. string.sub(grave, 11))
        left = 1
      else
        call('ZREM', letters, latest)
        n = n + call('HDEL', graves, latest)
      end
    end
  end
end
return { n, left }
