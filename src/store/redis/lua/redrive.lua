--@ use clock bells scores places leases moves views seek
-- Makes dead letters ready, their attempts reset. One whose id is live stays; of several of one id, one goes.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic   2 how many jobs at most   3 how many bytes of big bodies at most
--       then for all of the topic: 'all', where the call before ended (two values; '' and '' at first), how many to look at
--       or for some: 'ids' and the ids; of each the latest dead letter
-- Gives how many it moved, and for 'all' where it ended: two values, '' and '' when it has seen all. For 'ids': how many
-- of the ids it has seen, and ''
--
-- Moves a job: dead -> ready

local topic, left, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local graves, letters = base .. 'X:' .. topic, base .. 'x:' .. topic
local m, revived, jobs = moves(topic), {}, 0

-- Makes one dead letter ready.
local function revive(member, id)
  local grave = grave_of(call('HGET', graves, member))
  call('ZREM', letters, member)
  call('HDEL', graves, member)
  if grave.older > 0 and string.sub(member, -4) == '\0\0\0\0' then
    -- The one before it is the latest now, if it is still there.
    local before = id .. struct.pack('>I4', grave.older)
    local next_grave = call('HGET', graves, before)
    if next_grave then
      local number = struct.pack('>I4', grave.older - 1)
      next_grave = string.sub(next_grave, 1, 6) .. number .. string.sub(next_grave, 11)
      call('HSET', graves, member, next_grave)
      call('ZADD', letters, call('ZSCORE', letters, before), member)
      call('HDEL', graves, before)
      call('ZREM', letters, before)
    end
  end
  add(m, 'records', id, grave.record)
  if grave.log ~= '' then add(m, 'notes', id, struct.pack('>I4B', 0, 0) .. grave.log) end
  place(m, id, now, string.byte(grave.record) % 4)
  revived[id] = true
  jobs, left, bytes = jobs + 1, left - 1, bytes - #grave.record
end

local function live(id)
  return revived[id] or call('HEXISTS', base .. 'b:' .. topic, id) == 1
end

local score, member = '', ''
if ARGV[4] == 'all' then
  local first = rank_after(letters, ARGV[5], ARGV[6])
  local found = call('ZRANGE', letters, first, first + tonumber(ARGV[7]) - 1, 'WITHSCORES')
  local more = first + #found / 2 < call('ZCARD', letters)
  for i = 1, #found, 2 do
    if left == 0 or bytes <= 0 then
      more = true
      break
    end
    member, score = found[i], found[i + 1]
    local id = string.sub(member, 1, -5)
    if not live(id) then revive(member, id) end
  end
  if not more then score, member = '', '' end
else
  score = 0
  for i = 5, #ARGV do
    if left == 0 or bytes <= 0 then break end
    score = score + 1
    local latest = ARGV[i] .. '\0\0\0\0'
    if not live(ARGV[i]) and call('HEXISTS', graves, latest) == 1 then revive(latest, ARGV[i]) end
  end
end
make(m)
return { jobs, score, member }
