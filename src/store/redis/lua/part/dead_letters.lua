-- Single dead letters. endings.lua says how dead letters are numbered. The numbers of an id's letters are consecutive.
-- So if a letter between others is removed, some of the other letters are moved to new numbers. An id may have very
-- many dead letters. So each call moves only a limited number of letters, and a caller may need several calls. Needs:
-- `call`, seek, meter, latest_letters.

-- How much this call may still move: one unit for each letter that is moved, and one more for each 4 KiB of the letter.
local room = 400

-- Returns the name of the letter of `id` that died at the time `died` (ms as text), or nothing if there is no such
-- letter.
local function letter_of(letters, id, died)
  -- At most one letter of an id died at that time. The search begins directly before the names of this id. Few letters
  -- of other ids have names between the names of this id. So it is enough to read 32 members.
  local rank = rank_after(letters, died, id)
  local found = call('ZRANGE', letters, rank, rank + 31, 'WITHSCORES')
  for i = 1, #found, 2 do
    if tonumber(found[i + 1]) ~= tonumber(died) then return nil end
    if #found[i] == #id + 4 and string.sub(found[i], 1, #id) == id then return found[i] end
  end
end

-- Returns the lowest number of an id's letters. The name of the latest letter has no number yet. `top` is the number
-- that the latest letter gets when a newer letter is added. The latest letter stores the highest number of the older
-- letters, and `top` is one more than this stored number. If the id has no other letter, returns `top`.
local function lowest(letter_hash, id, top)
  local low, high = 1, top
  while low < high do
    local middle = math.floor((low + high) / 2)
    if call('HEXISTS', letter_hash, numbered(id, middle)) == 1 then high = middle else low = middle + 1 end
  end
  return low
end

-- Takes out letters that have older and newer letters of the same id. `goes` has the numbers of the letters to take
-- out. Goes from number `from` in the direction of `step` to the end, and moves the letters that stay into the gap that
-- the removed letters leave. When the room is used up, puts the removed letters back at the current position. So no
-- number is missing there, and the next call finds these letters nearer to the end. Returns how many letters were taken
-- out.
local function walk(letter_hash, letters, id, goes, top, from, step)
  local at, to, carried, moved = from, from, {}, false
  while true do
    local here = at == top and id .. ZERO or numbered(id, at)
    local letter = at >= 1 and at <= top and call('HGET', letter_hash, here)
    if not letter then break end
    if room <= 0 and moved then
      for _, one in ipairs(carried) do
        call('HSET', letter_hash, numbered(id, to), one.letter)
        call('ZADD', letters, one.died, numbered(id, to))
        to = to + step
      end
      return 0
    end
    local died = call('ZSCORE', letters, here)
    if goes[at] and room > 0 then
      carried[#carried + 1] = { letter = letter, died = died }
      -- A removal comes first: see moves.
      call('ZREM', letters, here)
    else
      call('HSET', letter_hash, numbered(id, to), letter)
      call('ZADD', letters, died, numbered(id, to))
      to, moved = to + step, true
    end
    room = room - 1 - #letter / 4096
    at = at + step
  end
  local bytes = 0
  for _, one in ipairs(carried) do bytes = bytes + #one.letter end
  if step > 0 then
    drop_latest(letter_hash, letters, id, to, top)
  else
    local names = {}
    for number = at + 1, to do names[#names + 1] = numbered(id, number) end
    drop(letter_hash, letters, names)
  end
  meter(topic_of(letter_hash), -bytes)
  return #carried
end

-- Takes letters of one id out. Stops early if more other letters must be moved than `room` allows. Returns how many
-- letters were taken out. The numbers of the other letters stay consecutive, and their order stays the same.
local function take_out(letter_hash, letters, id, members)
  local numbers, goes, latest, out = {}, {}, false, 0
  for _, member in ipairs(members) do
    local number = struct.unpack('>I4', member, #member - 3)
    if number == 0 then latest = true else numbers[#numbers + 1], goes[number] = number, true end
  end
  table.sort(numbers)
  local first, last = 1, #numbers
  -- If the oldest letters are removed, there is no gap between the other letters.
  while first <= last and (numbers[first] == 1 or call('HEXISTS', letter_hash, numbered(id, numbers[first] - 1)) == 0) do
    local names = { numbered(id, numbers[first]) }
    while first < last and numbers[first + 1] == numbers[first] + 1 do
      first = first + 1
      names[#names + 1] = numbered(id, numbers[first])
    end
    local topic = topic_of(letter_hash)
    local bytes = bytes_of('X:', topic, names)
    drop(letter_hash, letters, names)
    meter(topic, -bytes)
    first, out = first + 1, out + #names
  end
  if first > last and not latest then return out end
  local top = struct.unpack('>I4', call('HGET', letter_hash, id .. ZERO), 7) + 1
  if latest then
    -- If the latest letters are removed, there is no gap between the other letters.
    local from = top
    local names = { id .. ZERO }
    while first <= last and numbers[last] == from - 1 do
      from, last = from - 1, last - 1
      names[#names + 1] = numbered(id, from)
    end
    local topic = topic_of(letter_hash)
    local bytes = bytes_of('X:', topic, names)
    drop_latest(letter_hash, letters, id, from, top)
    meter(topic, -bytes)
    out, top = out + 1 + top - from, from - 1
  end
  if first > last then return out end
  local up, down = top - numbers[first], numbers[last] - lowest(letter_hash, id, top)
  if up <= down then return out + walk(letter_hash, letters, id, goes, top, numbers[first], 1) end
  return out + walk(letter_hash, letters, id, goes, top, numbers[last], -1)
end
