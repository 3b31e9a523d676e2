--@ use clock fence bells scores numbered places
-- Makes due jobs ready. Each due topic gets an equal share of the call, so that a topic with very many due jobs does
-- not delay the other topics. If some topics do not use their whole share, the topics with more due jobs get what is
-- left. The topic with the earliest due time comes first. Jobs that have been due for very long because of an outage
-- can get a later due time instead.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 how many jobs at most   2 how many topics at most
--       then nothing, or: 3 for how long a job must have been due to count as forgotten, ms   4 a random number
--         then topics, each followed by the span in ms over which its forgotten jobs are spread
-- Returns how many jobs it moved, the next due time in ms (in the past: there is more to do; -1: no job waits), the
-- shard's now in ms, and 1 if the outbox has entries, else 0; then topics, each followed by how many of its jobs were
-- spread
--
-- Moves a job: delayed -> ready; delayed -> delayed

local left = tonumber(ARGV[1])
local jobs = 0
local until_now = text(now * 4 + 3)
local spans, spread = {}, {}
for i = 5, #ARGV, 2 do spans[ARGV[i]] = tonumber(ARGV[i + 1]) end
if ARGV[4] then
  -- All shards get the same number. Each shard adds its own name, so that each shard chooses different times.
  local seed = tonumber(ARGV[4])
  for i = 1, #base do seed = (seed * 31 + string.byte(base, i)) % 2147483647 end
  math.randomseed(seed)
end

-- Gives new due times, within the span from now, to at most `most` forgotten jobs of a topic. Returns how many jobs got
-- a new due time.
local function spread_out(topic, delayed, span, most)
  local long_ago = text((now - ARGV[3]) * 4)
  local found = call('ZRANGE', delayed, '-inf', long_ago, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  local n = #found / 2
  if n == 0 then return 0 end
  -- A removal comes first: see moves.
  call('ZREMRANGEBYRANK', delayed, 0, n - 1)
  for i = 1, 2 * n, 2 do
    local _, rank = from_delayed(tonumber(found[i + 1]))
    found[i], found[i + 1] = text((now + 1 + math.floor(math.random() * span)) * 4 + rank), found[i]
  end
  call('ZADD', delayed, unpack(found))
  spread[#spread + 1] = topic
  spread[#spread + 1] = n
  return n
end

-- Moves at most `most` due jobs of a topic. Returns how many jobs it moved.
local function promote(topic, most)
  local delayed, moved = base .. 'd:' .. topic, 0
  if spans[topic] then moved = spread_out(topic, delayed, spans[topic], most) end
  local found = {}
  if moved < most then
    found = call('ZRANGE', delayed, '-inf', until_now, 'BYSCORE', 'LIMIT', 0, most - moved, 'WITHSCORES')
  end
  local n = #found / 2
  if n == 0 then
    -- A removal comes first: see moves.
    call('ZREM', base .. 'due', topic)
  else
    -- The jobs that were found have the lowest scores.
    call('ZREMRANGEBYRANK', delayed, 0, n - 1)
    local last, score, due, rank
    local queued = {}
    for i = 1, 2 * n, 2 do
      -- Jobs with the same due time often follow one another. Their new score is computed once.
      if found[i + 1] ~= last then
        last = found[i + 1]
        due, rank = from_delayed(tonumber(last))
        score = text(rank * 1e15 + due)
      end
      found[i], found[i + 1] = score, found[i]
      if rank == 0 then queued[#queued + 1], queued[#queued + 2] = found[i + 1], due end
    end
    call('ZADD', base .. 'r:' .. topic, unpack(found))
    if queued[1] then queue(topic, queued) end
    ring(topic)
  end
  call('ZADD', base .. 'due', call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2] or 'inf', topic)
  return moved + n
end

local most_topics = math.min(left, tonumber(ARGV[2]))
local topics = call('ZRANGE', base .. 'due', '-inf', until_now, 'BYSCORE', 'LIMIT', 0, most_topics)
if #topics == most_topics and most_topics > 1 then
  -- There may be more due topics than this call can look at. Half of the topics of the call are those that have waited
  -- longest. The other half are those that became due last. These topics have no backlog, and do not wait for topics
  -- that have a backlog.
  local half = math.floor(most_topics / 2)
  local latest = call('ZRANGE', base .. 'due', until_now, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, half)
  for i, topic in ipairs(latest) do topics[most_topics - half + i] = topic end
end
local share = math.floor(left / math.max(#topics, 1))
local have_more = {}
for _, topic in ipairs(topics) do
  local moved = promote(topic, share)
  left, jobs = left - moved, jobs + moved
  if moved == share then have_more[#have_more + 1] = topic end
end
for _, topic in ipairs(have_more) do
  if left == 0 then break end
  local moved = promote(topic, left)
  left, jobs = left - moved, jobs + moved
end
local first = call('ZRANGE', base .. 'due', 0, 0, 'WITHSCORES')[2]
return { jobs, first and first ~= 'inf' and (from_delayed(tonumber(first))) or -1, now, call('EXISTS', base .. 'out'), unpack(spread) }
