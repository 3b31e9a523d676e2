--@ use clock bells scores places
-- Gives a delayed or ready job a new due time.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic   2 id   3 due, as for add
-- Gives d done, n not found, c it is leased
--
-- Moves a job: delayed, ready -> delayed, ready

local topic, id = ARGV[1], ARGV[2]
local delayed, ready = base .. 'd:' .. topic, base .. 'r:' .. topic
local rank, from, _
local score = call('ZSCORE', delayed, id)
if score then
  _, rank = from_delayed(tonumber(score))
  from = delayed
else
  score = call('ZSCORE', ready, id)
  if not score then return call('HEXISTS', base .. 'L:' .. topic, id) == 1 and 'c' or 'n' end
  _, rank = from_ready(tonumber(score))
  from = ready
end
local due = moment(ARGV[3])
local to = due <= now and ready or delayed
if from ~= to then call('ZREM', from, id) end
if to == ready then
  call('ZADD', ready, text(rank * 1e15 + due), id)
  ring(topic)
else
  score = text(due * 4 + rank)
  call('ZADD', delayed, score, id)
  lower('due', topic, score)
end
return 'd'
