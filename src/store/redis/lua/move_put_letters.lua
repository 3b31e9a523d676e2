--@ use shard fence seek meter latest_letters dead_letters
-- Takes over dead letters of an id from another shard. A letter that is already here is not added again.
--
-- KEYS  1 the base of the id's home shard   2 the base, followed by the set: see fence
-- ARGV  1 topic   2 id   then for each letter, the oldest first: when it died in ms, and what is stored of it
-- Returns how many letters it has taken over
--
-- Moves a job: nothing -> dead

local topic, id, taken = ARGV[1], ARGV[2], 0
local letter_hash, letters = base .. 'X:' .. topic, base .. 'x:' .. topic
local latest = id .. ZERO

-- Returns the stored value of a letter, but leaves out the number of the older letter that this value contains.
local function without_number(letter)
  return string.sub(letter, 1, 6) .. string.sub(letter, 11)
end

local function with_number(letter, older)
  return string.sub(letter, 1, 6) .. struct.pack('>I4', older) .. string.sub(letter, 11)
end

local function set(name, letter, died)
  call('HSET', letter_hash, name, letter)
  call('ZADD', letters, died, name)
end

for i = 3, #ARGV, 2 do
  local died, letter = tonumber(ARGV[i]), ARGV[i + 1]
  -- Each letter of an id must have its own time of death. If another letter has the same time, this letter gets a later
  -- time.
  local there = letter_of(letters, id, died)
  while there and without_number(call('HGET', letter_hash, there)) ~= without_number(letter) do
    died = died + 1
    there = letter_of(letters, id, died)
  end
  if not there then
    taken = taken + 1
    meter(topic, #letter)
    local last = call('HGET', letter_hash, latest)
    local top = last and struct.unpack('>I4', last, 7) + 1 or 0
    local last_died = last and tonumber(call('ZSCORE', letters, latest))
    local moment = string.format('%.0f', died)
    if last and died < last_died then
      -- The number of each letter that died later than this letter grows by one.
      local at = top
      while at > 1 do
        local before = call('ZSCORE', letters, numbered(id, at - 1))
        if not before or tonumber(before) < died then break end
        set(numbered(id, at), call('HGET', letter_hash, numbered(id, at - 1)), before)
        at = at - 1
      end
      call('HSET', letter_hash, latest, with_number(last, top))
      set(numbered(id, at), letter, moment)
    else
      if last then set(numbered(id, top), last, string.format('%.0f', last_died)) end
      set(latest, with_number(letter, top), moment)
    end
  end
end
call('ZADD', base .. 'due', 'NX', 'inf', topic)
return taken
