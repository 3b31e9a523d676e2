-- How leases end: what settle, expire and hand_back share. Needs: clock, bells, scores, moves, leases.

-- So many of a job's last attempts are kept.
local KEPT = 10

-- A log is one line an attempt, each ended by a newline.
local function appended(log, line)
  if line == '' then return log end
  log = log .. line .. '\n'
  local _, lines = string.gsub(log, '\n', '\n')
  local start = 1
  for _ = KEPT + 1, lines do start = string.find(log, '\n', start, true) + 1 end
  return string.sub(log, start)
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
local function note(m, id, lease, attempts, crashes, log)
  if attempts > 0 or crashes > 0 or log ~= '' then
    add(m, 'notes', id, struct.pack('>I4B', attempts, crashes) .. log)
  elseif lease.noted then
    add(m, 'forgotten', id)
  end
end

-- Makes a job a dead letter. The latest of an id is named by the id and four zero bytes. One that was there before gets
-- the next number in their place; so an id's older ones have consecutive numbers up to the one that the latest names,
-- and the oldest of them, which died first, has the lowest.
local function bury(m, id, lease, log)
  local graves, letters, latest = base .. 'X:' .. m.topic, base .. 'x:' .. m.topic, id .. '\0\0\0\0'
  local record = call('HGET', base .. 'b:' .. m.topic, id)
  local died, older = now, 0
  local before = call('HGET', graves, latest)
  if before then
    older = struct.unpack('>I4', before, 7) + 1
    local score = call('ZSCORE', letters, latest)
    died = math.max(now, score + 1)
    call('HSET', graves, id .. struct.pack('>I4', older), before)
    call('ZADD', letters, score, id .. struct.pack('>I4', older))
  end
  call('HSET', graves, latest, struct.pack('>I6I4I4I4', lease.due, older, lease.attempts, #log) .. log .. record)
  call('ZADD', letters, text(died), latest)
  unlease(m, id, lease)
  add(m, 'gone', id)
  if lease.noted then add(m, 'forgotten', id) end
end

-- Ends a lease whose attempt counts and came to nothing: ready again or, its attempts used up, dead.
local function count_as_lost(m, id, lease, why)
  local log = appended(log_of(m.topic, id, lease), lost(lease.attempts, why))
  if lease.attempts >= lease.limit then return bury(m, id, lease, log) end
  unlease(m, id, lease)
  note(m, id, lease, lease.attempts, lease.crashes, log)
  place(m, id, lease.due, lease.rank)
end
