--@ use clock fence history
-- Erases records. If no record of the topic is left after 'oldest', forgets what the topic keeps, because the topic may
-- be removed. A host that serves the topic states it again.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 topic   2 'ids', followed by ids, or 'oldest', followed by a number of ids
-- Returns how many records it has erased ('oldest': of how many ids), and 1 if the topic has more records, else 0
--
-- Changes the state of no job.

local topic, gone, hash = ARGV[1], 0, base .. 'H:' .. ARGV[1]
if ARGV[2] == 'oldest' then
  gone = erase_oldest(topic, tonumber(ARGV[3]))
  if call('EXISTS', hash) == 0 then call('HDEL', base .. 'keeping', topic) end
else
  local ids = {}
  for i = 3, #ARGV do
    local records, at = call('HGET', hash, ARGV[i]) or '', 1
    while at <= #records do
      gone, at = gone + 1, at + 4 + struct.unpack('>I4', records, at)
    end
    if records ~= '' then ids[#ids + 1] = ARGV[i] end
  end
  erase(topic, ids)
end
return { gone, call('EXISTS', hash) }
