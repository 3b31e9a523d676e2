-- What is kept of jobs that have ended. `H:<topic>` has a field for each id: its records, the oldest first. `h:<topic>`
-- has each of these ids by the time of its last record. `kept` has each topic with records, and its score is the bytes
-- of these records. The score of '' is the bytes of all topics together. `keeping` has what a topic keeps, if this is
-- not the default: the maximum age in ms, the maximum number of ids, and a digit (1 if bodies are kept, plus 2 if the
-- end of a job makes an event). Its field '' is the limit of the bytes of all topics together. The functions of this
-- part also write the outbox: see outbox_take.
--
-- A record: the length of the rest (4 bytes), how the job ended (1), when it ended, ms (6), when it was added, us (7, 0
-- if this is not known), due time (6), attempts (4), length of the log (4), the log, and the body (empty if no body is
-- kept). Needs: clock.

local DELIVERED, DEAD, DELETED, REPLACED = 1, 2, 3, 4
-- These values are the same as in src/model/record.rs.
local DEFAULT_AGE, DEFAULT_IDS, DEFAULT_BYTES = 86400000, 100000, 536870912
local OF_AN_ID, BODY_MAX = 10, 65536
-- The number of bytes in a record between its length and its log.
local RECORD_HEAD = 28
-- For each record that a call writes, the call erases the records of at most this many surplus ids.
local SURPLUS = 2

-- Returns how many ids a topic keeps (0: it keeps no records), whether it keeps bodies, whether the end of a job makes
-- an event, and the maximum age in ms.
local function keeping_of(topic)
  local kept = call('HGET', base .. 'keeping', topic)
  if not kept then return DEFAULT_IDS, false, false, DEFAULT_AGE end
  local age, ids, digit = string.match(kept, '^(%d+) (%d+) (%d)$')
  age, ids, digit = tonumber(age), tonumber(ids), tonumber(digit)
  return age > 0 and ids or 0, digit % 2 == 1, digit >= 2, age
end

-- Returns a record of a job that ends now.
local function packed(ending, due, attempts, stamp, log, body)
  return struct.pack('>I4BI6I7I6I4I4', RECORD_HEAD + #log + #body, ending, now, stamp, due, attempts, #log) .. log .. body
end

-- Returns a log in which the line of headers has only the tags and the links. The other headers are kept only together
-- with the body. A quotation mark inside a value has a backslash before it. So no text inside a value looks like the
-- tags or the links.
local function with_tags_alone(log)
  local line, own = string.match(log, '^h[^\n]*\n'), {}
  for _, name in ipairs({ 'tags', 'next', 'after' }) do own[#own + 1] = string.match(line, '":' .. name .. '":"[^"]*"') end
  return (own[1] and 'h{' .. table.concat(own, ',') .. '}\n' or '') .. string.sub(log, #line + 1)
end

-- Notes an entry of the outbox. `keep` writes it later. `kind` 1 is a job of `then`: `place` is its place in the list
-- of `then`, and `rest` is its text. `kind` 2 is an event: `rest` is the record of the job.
local function follows(m, kind, id, stamp, place, rest)
  m.out = m.out or {}
  m.out[#m.out + 1] = struct.pack('>BI2', kind, #m.topic) .. m.topic .. struct.pack('>I2', #id) .. id
    .. struct.pack('>I7B', stamp, place) .. rest
end

-- Writes the noted entries to the outbox. The number of an entry is about the time in us. So the numbers increase even
-- if the last number was lost.
local function write_outbox(m)
  local out, number = base .. 'out', tonumber(call('GET', base .. 'outn') or 0)
  local was_empty = call('EXISTS', out) == 0
  for _, entry in ipairs(m.out) do
    number = math.max(number + 1, now_us)
    local score = string.format('%.0f', number)
    -- The number comes first, so that no two entries are the same.
    call('ZADD', out, score, struct.pack('>I7', number) .. entry)
  end
  call('SET', base .. 'outn', string.format('%.0f', number))
  if was_empty then call('ZADD', base .. 'tbell', 0, 'timer') end
end

-- Notes that a job ends now. Callers name each id only once for the same `m`. `record` is the stored record of the job,
-- if the caller has it. `stamp` is when the job was added, or 0 if the stamp must be read from the record.
local function ends(m, id, ending, due, attempts, log, stamp, record)
  if not m.ids then m.ids, m.bodies, m.events = keeping_of(m.topic) end
  local event = m.events and (ending == DELIVERED or ending == DEAD)
  local chain = ending == DELIVERED and string.byte(log) == 104 and string.match(log, '^h[^\n]*":then":"([^"]*)"')
  if m.ids == 0 and not event and not chain then return end
  local body = ''
  if stamp == 0 or m.bodies then
    local key = base .. 'b:' .. m.topic
    -- (A large record is not read, because the read would occupy the server for long.)
    if not record and call('HSTRLEN', key, id) <= BODY_MAX + 12 then record = call('HGET', key, id) end
    if record then
      stamp = struct.unpack('>I7', record, 2)
      if m.bodies then
        body = string.sub(record, string.byte(record) >= 4 and 13 or 9)
        if #body > BODY_MAX then body = '' end
      end
    end
  end
  if chain then
    local at = 0
    for text in string.gmatch(chain, '[^.]+') do
      follows(m, 1, id, stamp, at, text)
      at = at + 1
    end
  end
  if body == '' and string.byte(log) == 104 then log = with_tags_alone(log) end
  if event then follows(m, 2, id, stamp, 0, packed(ending, due, attempts, stamp, log, body)) end
  if m.ids == 0 then return end
  local list = m.ended
  if not list then
    list = { n = 0, ids = {}, records = {} }
    m.ended = list
  end
  local n = list.n + 1
  list.n, list.ids[n], list.records[n] = n, id, packed(ending, due, attempts, stamp, log, body)
end

-- Returns the last records of an id: at most OF_AN_ID.
local function last_of(records)
  local starts, at = {}, 1
  while at <= #records do
    starts[#starts + 1] = at
    at = at + 4 + struct.unpack('>I4', records, at)
  end
  if #starts <= OF_AN_ID then return records end
  return string.sub(records, starts[#starts - OF_AN_ID + 1])
end

-- Adds `bytes` to the count of the bytes of a topic's records. Returns the bytes of all topics.
local function weigh(topic, bytes)
  call('ZINCRBY', base .. 'kept', bytes, topic)
  return tonumber(call('ZINCRBY', base .. 'kept', bytes, ''))
end

-- Erases the records of these ids.
local function erase(topic, ids)
  if not ids[1] then return end
  local hash, bytes = base .. 'H:' .. topic, 0
  for i, records in ipairs(call('HMGET', hash, unpack(ids))) do
    if records then bytes = bytes + #records + #ids[i] end
  end
  call('ZREM', base .. 'h:' .. topic, unpack(ids))
  call('HDEL', hash, unpack(ids))
  weigh(topic, -bytes)
  if call('EXISTS', hash) == 0 then call('ZREM', base .. 'kept', topic) end
end

-- Erases the records of `n` ids of a topic: of the ids with the oldest last records. Returns the number of these ids.
local function erase_oldest(topic, n)
  local ids = call('ZRANGE', base .. 'h:' .. topic, 0, n - 1)
  erase(topic, ids)
  return #ids
end

-- Erases the oldest records of the topic that has the most bytes of records: about `bytes` bytes, but the records of at
-- most `n` ids. Returns the number of these ids.
local function erase_of_largest(bytes, n)
  local found = call('ZRANGE', base .. 'kept', 0, 1, 'REV', 'WITHSCORES')
  for i = 1, #found, 2 do
    local topic = found[i]
    if topic ~= '' then
      local size = tonumber(found[i + 1]) / call('ZCARD', base .. 'h:' .. topic)
      return erase_oldest(topic, math.min(n, math.ceil(bytes / size)))
    end
  end
  return 0
end

-- Writes the outbox and the records of the jobs that have ended, and erases old records if there are too many. Call
-- this function after the other changes, because its first write is not a removal: see moves.
local function keep(m)
  local list, topic = m.ended, m.topic
  if m.out then write_outbox(m) end
  if not list or list.n == 0 then return end
  local n, ids, records, moment, bytes = list.n, list.ids, list.records, string.format('%.0f', now), 0
  -- This list first has scores and ids in turn, and later ids and records in turn.
  local words = { [0] = moment }
  for i = 1, n do words[2 * i - 1], words[2 * i] = ids[i], moment end
  if call('ZADD', base .. 'h:' .. topic, unpack(words, 0, 2 * n - 1)) == n then
    -- None of the ids had a record.
    for i = 1, n do
      words[2 * i] = records[i]
      bytes = bytes + #records[i] + #ids[i]
    end
  else
    for i, before in ipairs(call('HMGET', base .. 'H:' .. topic, unpack(ids))) do
      local all = before and last_of(before .. records[i]) or records[i]
      words[2 * i] = all
      bytes = bytes + #all - (before and #before or -#ids[i])
    end
  end
  call('HSET', base .. 'H:' .. topic, unpack(words, 1, 2 * n))
  local sum = weigh(topic, bytes)
  local surplus = call('ZCARD', base .. 'h:' .. topic) - m.ids
  if surplus > 0 then erase_oldest(topic, math.min(surplus, SURPLUS * n)) end
  local over = sum - (call('HGET', base .. 'keeping', '') or DEFAULT_BYTES)
  if over > 0 then erase_of_largest(over, SURPLUS * n) end
end
