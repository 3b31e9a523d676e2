-- How leases end: the part that settle, expire and hand_back share. Needs: clock, bells, scores, moves, leases,
-- history.

-- How many attempts of a job are kept, and how many of these are its first attempts. The others are its last attempts.
local KEPT, FIRST_KEPT = 10, 2

-- Adds a line to a log. A log has one line for each attempt. Each line ends with a newline. If the job has its own
-- headers, the first line has them, and begins with 'h'. This line is no attempt, and is always kept.
local function appended(log, line)
  if line == '' then return log end
  local headers = string.match(log, '^h[^\n]*\n') or ''
  log = string.sub(log, #headers + 1) .. line .. '\n'
  local _, lines = string.gsub(log, '\n', '\n')
  if lines > KEPT then
    local from = 1
    for _ = 1, FIRST_KEPT do from = string.find(log, '\n', from, true) + 1 end
    local to = from
    for _ = KEPT + 1, lines do to = string.find(log, '\n', to, true) + 1 end
    log = string.sub(log, 1, from - 1) .. string.sub(log, to)
  end
  return headers .. log
end

local function log_of(topic, id, lease)
  if not lease.noted then return '' end
  return string.sub(call('HGET', base .. 'm:' .. topic, id) or '', 6)
end

-- Returns the line of the log for an attempt without a result: JSON in the form of `Attempt` in src/model/job.rs.
local function lost(number, why)
  return string.format('{"number":%d,"at_ms":%.0f,"took_ms":0,"error":"%s"}', number, now, why)
end

-- Gives a leased job another priority. `priority` is a rank (1, 2 or 3), or 'p' and a number. The rank stands for a
-- level, and 'p' stands for a priority that is a number. Returns the log of the job. If the new priority is a number,
-- the first line of the log has this number. If the level in the record must change, `lease.level` is the new level:
-- see `with_level`.
local function with_priority(lease, log, priority)
  local number = string.match(priority, '^p(%d+)$')
  local level = lease.rank == 0 and 2 or lease.rank
  lease.rank = number and 0 or tonumber(priority)
  lease.level = number and 2 or lease.rank
  if lease.level == level then lease.level = nil end
  return with_number(log, number, lease.stamp)
end

-- Returns the record of a job. If `with_priority` has noted another level, the returned record has this level.
local function with_level(record, lease)
  if not lease.level then return record end
  return string.char(string.byte(record) >= 4 and lease.level + 4 or lease.level) .. string.sub(record, 2)
end

-- Notes that the counts and the log of a job are stored beside its record when the moves are made.
local function note(m, id, attempts, crashes, log)
  add(m, 'notes', id, struct.pack('>I4B', attempts, crashes) .. log)
end

-- Notes that a job becomes a dead letter when the moves are made.
local function bury(m, id, lease, log)
  unlease(m, id, lease)
  add(m, 'gone', id)
  if lease.noted then add(m, 'forgotten', id) end
  add(m, 'new_letters', { id = id, latest = id .. '\0\0\0\0', lease = lease, log = log })
end

-- The name of the latest dead letter of an id is the id and four zero bytes. When a new letter is added, the letter
-- that had this name gets the next number in place of the zero bytes. So the older letters of an id have consecutive
-- numbers, up to the number that the latest letter contains. The letter that died first has the lowest number.
local function add_letters(m)
  local topic = m.topic
  local letter_hash, letters, latest, gone = base .. 'X:' .. topic, base .. 'x:' .. topic, {}, {}
  for i, one in ipairs(m.new_letters) do latest[i], gone[i] = one.latest, one.id end
  -- A removal comes first: see moves.
  call('ZREM', base .. 'l:' .. topic, unpack(gone))
  local before, values, scores = call('ZMSCORE', letters, unpack(latest)), {}, {}
  for i, one in ipairs(m.new_letters) do
    local died, older = now, 0
    if before[i] then
      local letter = call('HGET', letter_hash, one.latest)
      older = struct.unpack('>I4', letter, 7) + 1
      died = math.max(now, before[i] + 1)
      local name = one.id .. struct.pack('>I4', older)
      call('HSET', letter_hash, name, letter)
      call('ZADD', letters, before[i], name)
    end
    local head = struct.pack('>I6I4I4I4', one.lease.due, older, one.lease.attempts, #one.log) .. one.log
    local record = with_level(call('HGET', base .. 'b:' .. topic, one.id), one.lease)
    values[2 * i - 1], values[2 * i] = one.latest, head .. record
    ends(m, one.id, DEAD, one.lease.due, one.lease.attempts, one.log, 0, record)
    scores[2 * i - 1], scores[2 * i] = text(died), one.latest
  end
  call('HSET', letter_hash, unpack(values))
  call('ZADD', letters, unpack(scores))
  local bytes = 0
  for i = 2, #values, 2 do bytes = bytes + #values[i] end
  meter(topic, bytes)
end

-- Makes the moves. The dead letters are added first, because they contain the records of their jobs, and the moves
-- remove these records.
local function finish(m)
  if m.new_letters then add_letters(m) end
  make(m)
  keep(m)
end

-- Adds the topic to a list, once for each job that became a dead letter.
local function add_dead_topics(m, dead)
  for _ in ipairs(m.new_letters or {}) do dead[#dead + 1] = m.topic end
end

-- Ends a lease that had no result. Its attempt counts. The job is ready again, or dead if its attempts are used up.
local function count_as_lost(m, id, lease, why)
  local log = appended(log_of(m.topic, id, lease), lost(lease.attempts, why))
  if lease.attempts >= lease.limit then return bury(m, id, lease, log) end
  unlease(m, id, lease)
  note(m, id, lease.attempts, lease.crashes, log)
  place(m, id, due_after(lease), lease.rank)
end
