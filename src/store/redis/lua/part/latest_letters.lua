-- The latest dead letters of an id. endings.lua says how the letters of an id are numbered. Needs: `call`.

local ZERO = '\0\0\0\0'

local function numbered(id, number)
  return id .. struct.pack('>I4', number)
end

local function drop(letter_hash, letters, names)
  call('ZREM', letters, unpack(names))
  call('HDEL', letter_hash, unpack(names))
end

-- Returns the topic of a key of dead letters.
local function topic_of(letter_hash)
  return string.sub(letter_hash, #base + 3)
end

-- Drops the latest letter, and all letters from number `from` on. If older letters are left, the newest of them becomes
-- the latest letter.
local function drop_latest(letter_hash, letters, id, from, top)
  local names = { id .. ZERO }
  for number = from, top - 1 do names[#names + 1] = numbered(id, number) end
  drop(letter_hash, letters, names)
  local before = numbered(id, from - 1)
  local letter = from > 1 and call('HGET', letter_hash, before)
  if not letter then return end
  local died = call('ZSCORE', letters, before)
  drop(letter_hash, letters, { before })
  local number = struct.pack('>I4', from - 2)
  call('HSET', letter_hash, id .. ZERO, string.sub(letter, 1, 6) .. number .. string.sub(letter, 11))
  call('ZADD', letters, died, id .. ZERO)
end
