--@ use shard
-- Counts the jobs of all topics that ever had a job. One call counts some of the topics.
--
-- KEYS  1 the shard's base
-- ARGV  1 the cursor: '0' at first   2 about how many topics
-- Returns an array: the next cursor ('0' at the end), then for each topic: topic, delayed, ready, leased, dead, and
-- when the oldest ready job was due, in ms (-1: no job is ready), and how many bytes its jobs have (-1: bytes are not
-- counted). A topic may occur more than once
--
-- Changes the state of no job.

local scan = call('ZSCAN', base .. 'due', ARGV[1], 'COUNT', ARGV[2])
local out, n = { scan[1] }, 1
for i = 1, #scan[2], 2 do
  local topic = scan[2][i]
  out[n + 1] = topic
  for k, prefix in ipairs({ 'd:', 'r:', 'l:', 'x:' }) do out[n + 1 + k] = call('ZCARD', base .. prefix .. topic) end
  local oldest = -1
  -- Looks for the oldest ready job of each rank: see scores.
  local first = out[n + 3] > 0 and call('ZRANGE', base .. 'r:' .. topic, 0, 0, 'WITHSCORES')[2]
  while first do
    local rank = math.floor(first / 1e15)
    local due = first - rank * 1e15
    if oldest < 0 or due < oldest then oldest = due end
    first = rank < 3 and call('ZRANGE', base .. 'r:' .. topic, string.format('%.0f', (rank + 1) * 1e15), '+inf', 'BYSCORE',
      'LIMIT', 0, 1, 'WITHSCORES')[2]
  end
  local bytes = call('HGET', base .. 'bytes', topic)
  out[n + 6], out[n + 7] = oldest, bytes and math.max(0, tonumber(bytes)) or -1
  n = n + 7
end
return out
