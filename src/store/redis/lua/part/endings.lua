-- How leases end: what settle, expire and hand_back share. Needs: clock, bells, scores, moves, leases.

-- So many of a job's last attempts are kept.
local KEPT = 10

-- A log is one line an attempt, each ended by a newline. Before them stands one that begins with 'h', where the job has
-- headers of its own; it is no attempt, and stays.
local function appended(log, line)
  if line == '' then return log end
  local headers = string.match(log, '^h[^\n]*\n') or ''
  log = string.sub(log, #headers + 1) .. line .. '\n'
  local _, lines = string.gsub(log, '\n', '\n')
  local start = 1
  for _ = KEPT + 1, lines do start = string.find(log, '\n', start, true) + 1 end
  return headers .. string.sub(log, start)
end

local function log_of(topic, id, lease)
  if not lease.noted then return '' end
  return string.sub(call('HGET', base .. 'm:' .. topic, id) or '', 6)
end

-- An attempt of which nothing came back, as a line of the log: JSON, as clients write theirs.
local function lost(number, why)
  return string.format('{"number":%d,"at_ms":%.0f,"took_ms":0,"error":"%s"}', number, now, why)
end

-- Keeps what is to be known of a job beside its record.
local function note(m, id, attempts, crashes, log)
  add(m, 'notes', id, struct.pack('>I4B', attempts, crashes) .. log)
end

-- Makes a job a dead letter, when the moves are made.
local function bury(m, id, lease, log)
  unlease(m, id, lease)
  add(m, 'gone', id)
  if lease.noted then add(m, 'forgotten', id) end
  add(m, 'buried', { id = id, latest = id .. '\0\0\0\0', lease = lease, log = log })
end

-- The latest dead letter of an id is named by the id and four zero bytes. One that was there before gets the next number
-- in their place; so an id's older ones have consecutive numbers up to the one that the latest names, and the oldest of
-- them, which died first, has the lowest.
local function make_graves(m)
  local topic = m.topic
  local graves, letters, latest, gone = base .. 'X:' .. topic, base .. 'x:' .. topic, {}, {}
  for i, one in ipairs(m.buried) do latest[i], gone[i] = one.latest, one.id end
  -- A removal comes first: see moves.
  call('ZREM', base .. 'l:' .. topic, unpack(gone))
  local before, values, scores = call('ZMSCORE', letters, unpack(latest)), {}, {}
  for i, one in ipairs(m.buried) do
    local died, older = now, 0
    if before[i] then
      local grave = call('HGET', graves, one.latest)
      older = struct.unpack('>I4', grave, 7) + 1
      died = math.max(now, before[i] + 1)
      local name = one.id .. struct.pack('>I4', older)
      call('HSET', graves, name, grave)
      call('ZADD', letters, before[i], name)
    end
    local head = struct.pack('>I6I4I4I4', one.lease.due, older, one.lease.attempts, #one.log) .. one.log
    values[2 * i - 1], values[2 * i] = one.latest, head .. call('HGET', base .. 'b:' .. topic, one.id)
    scores[2 * i - 1], scores[2 * i] = text(died), one.latest
  end
  call('HSET', graves, unpack(values))
  call('ZADD', letters, unpack(scores))
end

-- Makes the moves, the burials first: they need the records.
local function finish(m)
  if m.buried then make_graves(m) end
  make(m)
end

-- Puts the topic to the list once for each job that was buried.
local function tell_buried(m, dead)
  for _ in ipairs(m.buried or {}) do dead[#dead + 1] = m.topic end
end

-- Ends a lease whose attempt counts and came to nothing: ready again or, its attempts used up, dead.
local function count_as_lost(m, id, lease, why)
  local log = appended(log_of(m.topic, id, lease), lost(lease.attempts, why))
  if lease.attempts >= lease.limit then return bury(m, id, lease, log) end
  unlease(m, id, lease)
  note(m, id, lease.attempts, lease.crashes, log)
  place(m, id, lease.due, lease.rank)
end
