--@ use clock fence history
-- Takes over records from another shard. A record that is already here is not added again.
--
-- KEYS  1 the base of the ids' home shard   2 the base, followed by the set: see fence
-- ARGV  1 topic   then for each id: the id, and its records
-- Returns the number of ids of which it has taken over records
--
-- Changes the state of no job.

local topic, hash, order = ARGV[1], base .. 'H:' .. ARGV[1], base .. 'h:' .. ARGV[1]

-- Adds records to a list, each once.
local function split(all, seen, records)
  local at = 1
  while at <= #records do
    local behind = at + 4 + struct.unpack('>I4', records, at)
    local one = string.sub(records, at, behind - 1)
    if not seen[one] then
      seen[one] = true
      all[#all + 1] = { struct.unpack('>I6', one, 6), #all, one }
    end
    at = behind
  end
end

for i = 2, #ARGV, 2 do
  local id, before = ARGV[i], call('HGET', hash, ARGV[i]) or ''
  local all, seen, texts = {}, {}, {}
  split(all, seen, before)
  split(all, seen, ARGV[i + 1])
  table.sort(all, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
  for k, one in ipairs(all) do texts[k] = one[3] end
  local text = last_of(table.concat(texts))
  call('HSET', hash, id, text)
  call('ZADD', order, string.format('%.0f', all[#all][1]), id)
  weigh(topic, #text - #before + (before == '' and #id or 0))
end
-- Each topic that ever had a job must be in `due`, so that the script `counts` finds the topic.
call('ZADD', base .. 'due', 'NX', 'inf', topic)
return (#ARGV - 1) / 2
