-- Dead letters one by one. How they are numbered: see endings. Needs: `call`.

local ZERO = '\0\0\0\0'

-- The name of the letter of an id that died then; nothing: there is none.
local function letter_of(graves, letters, id, died)
  local latest = id .. ZERO
  local score = call('ZSCORE', letters, latest)
  if not score then return nil end
  if tonumber(score) == died then return latest end
  local low, high = 1, struct.unpack('>I4', call('HGET', graves, latest), 7)
  while low <= high do
    local middle = math.floor((low + high) / 2)
    local name = id .. struct.pack('>I4', middle)
    -- Where one is missing, there are none before it.
    local at = tonumber(call('ZSCORE', letters, name) or -1)
    if at == died then return name end
    if at > died then high = middle - 1 else low = middle + 1 end
  end
end

-- Takes a letter out, and gives it. The numbers of the others stay consecutive.
local function take_out(graves, letters, id, member)
  local packed = call('HGET', graves, member)
  call('ZREM', letters, member)
  call('HDEL', graves, member)
  local number, older = struct.unpack('>I4', member, #member - 3), struct.unpack('>I4', packed, 7)
  if number == 0 and older > 0 then
    -- The one before it is the latest now, if it is still there.
    local before = id .. struct.pack('>I4', older)
    local grave = call('HGET', graves, before)
    if grave then
      grave = string.sub(grave, 1, 6) .. struct.pack('>I4', older - 1) .. string.sub(grave, 11)
      call('HSET', graves, member, grave)
      call('ZADD', letters, call('ZSCORE', letters, before), member)
      call('HDEL', graves, before)
      call('ZREM', letters, before)
    end
  end
  while number > 1 do
    local before, name = id .. struct.pack('>I4', number - 1), id .. struct.pack('>I4', number)
    local grave = call('HGET', graves, before)
    if not grave then break end
    call('HSET', graves, name, grave)
    call('ZADD', letters, call('ZSCORE', letters, before), name)
    call('HDEL', graves, before)
    call('ZREM', letters, before)
    number = number - 1
  end
  return packed
end
