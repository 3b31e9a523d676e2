--@ use clock bells scores
-- Stores new jobs.
--
-- KEYS  1 the shard's base
-- ARGV  1 the node whose place this shard takes; '' when it is their home
--       then for each topic: topic, n, and n times: id, due, flags, body
--         due    '+span_ms' or 'moment_ms'
--         flags  priority (1 2 3), what happens when the id is taken (r replace, k keep, x reject), and the job's own
--                limit of attempts in decimal, or nothing; and '+' and the attempts that were made before it came here,
--                if there were any; and 'h' and its headers, if it has some: '2r', '1k7', '2k+3', '2r7h{"a":"b"}'
-- Gives one letter a job, in their order: n new, r replaced, k kept, x rejected
--
-- Moves a job: nothing -> delayed, ready. One that is replaced: delayed, ready -> delayed, ready; leased -> leased, where
-- the record is the replacement's, and comes to delayed or ready when the lease has ended. Dead letters do not conflict.

-- A topic that had a body of more is in `big` for ever: see sizes.
local BIG = 65536
local REPLACE, KEEP = 114, 107
local byte = string.byte
local home, out = ARGV[1], ''
-- The job looked at: most jobs of a call have flags and due time of the one before.
local flags, due, rank, head, at, waiting, score, noted

local i, topic = 2, ARGV[2]
while topic do
  local n = tonumber(ARGV[i + 1])
  local first, last = i + 2, i + 4 * n - 2
  i = last + 4
  local bodies, delayed, ready = base .. 'b:' .. topic, base .. 'd:' .. topic, base .. 'r:' .. topic
  local records, moments, scores, to_delayed, to_ready, d, r, earliest = nil, nil, nil, nil, nil, 0, 0, nil
  if n > 1 then records, moments, scores, to_delayed, to_ready = {}, {}, {}, {}, {} end
  local all_replace, big, record, notes = true, false, nil, nil
  local k = 0
  for j = first, last, 4 do
    if ARGV[j + 2] ~= flags then
      flags, due = ARGV[j + 2], nil
      rank = byte(flags) - 48
      head, noted = struct.pack('>BI7', rank, now_us), nil
      if #flags > 2 then
        local limit, attempts, headers = string.match(flags, '^..(%d*)%+?(%d*)(.*)$')
        if limit ~= '' then head = struct.pack('>BI7I4', rank + 4, now_us, tonumber(limit)) end
        if attempts .. headers ~= '' then
          noted = struct.pack('>I4B', tonumber(attempts) or 0, 0) .. (headers ~= '' and headers .. '\n' or '')
        end
      end
    end
    if ARGV[j + 1] ~= due then
      due = ARGV[j + 1]
      at = moment(due)
      waiting = at > now
      score = text(waiting and at * 4 + rank or rank * 1e15 + at)
    end
    if byte(flags, 2) ~= REPLACE then all_replace = false end
    record = ARGV[j + 3]
    if #record > BIG then big = true end
    record = head .. record
    k = k + 1
    if noted then
      notes = notes or {}
      notes[k] = noted
    end
    if records then
      local id = ARGV[j]
      records[2 * k - 1], records[2 * k] = id, record
      moments[k], scores[k] = at, score
      if waiting then
        to_delayed[d + 1], to_delayed[d + 2] = score, id
        d = d + 2
        if not earliest or at * 4 + rank < earliest then earliest = at * 4 + rank end
      else
        to_ready[r + 1], to_ready[r + 2] = score, id
        r = r + 2
      end
    end
  end
  if big then call('SADD', base .. 'big', topic) end
  -- With all of them to replace, the number of new fields tells whether any id was taken.
  local fresh
  if n == 1 then
    fresh = call(all_replace and 'HSET' or 'HSETNX', bodies, ARGV[first], record) == 1
  else
    fresh = all_replace and call('HSET', bodies, unpack(records)) == n
  end
  -- Of those that are stored, when not all are: their ids; and of each id, which of them is the job.
  local stored, is
  if fresh then
    out = out .. string.rep('n', n)
  else
    -- Some id is taken, or may be, or comes twice.
    local ids, was, letters, old = {}, {}, {}, {}
    stored, is = {}, {}
    for j = first, last, 4 do ids[#ids + 1] = ARGV[j] end
    local in_delayed = call('ZMSCORE', delayed, unpack(ids))
    local in_ready = call('ZMSCORE', ready, unpack(ids))
    local in_leased = call('ZMSCORE', base .. 'l:' .. topic, unpack(ids))
    for x, id in ipairs(ids) do
      was[id] = in_delayed[x] and delayed or in_ready[x] and ready or in_leased[x] and 'leased'
    end
    -- Of several with one id, the last that may have it is the job.
    for x, id in ipairs(ids) do
      local rule, taken = byte(ARGV[first + 4 * x - 2], 2), was[id] or is[id]
      letters[x] = not taken and 'n' or rule == REPLACE and 'r' or rule == KEEP and 'k' or 'x'
      if not taken or rule == REPLACE then
        if not is[id] then stored[#stored + 1] = id end
        is[id] = x
      end
    end
    out = out .. table.concat(letters)
    local chosen, from_delayed, from_ready = {}, {}, {}
    to_delayed, to_ready, d, r, earliest = {}, {}, 0, 0, nil
    if n == 1 then records, moments, scores = { ids[1], record }, { at }, { score } end
    for x, id in ipairs(stored) do
      local k = is[id]
      local own_rank, to = byte(ARGV[first + 4 * k - 2]) - 48, moments[k] > now and delayed or ready
      chosen[2 * x - 1], chosen[2 * x] = id, records[2 * k]
      if was[id] then old[#old + 1] = id end
      if was[id] == 'leased' then
        -- The lease keeps its token (20 bytes) and, from the 33rd on, what it ends by; due, priority and the mark
        -- REPLACED are the replacement's; a job that is HIDDEN stays so. See leases.
        local lease = call('HGET', base .. 'L:' .. topic, id)
        local marks = byte(lease, 27) >= 16 and 24 or 8
        lease = string.sub(lease, 1, 20)
          .. struct.pack('>I6BI4B', moments[k], own_rank + marks, 0, 0)
          .. string.sub(lease, 33)
        call('HSET', base .. 'L:' .. topic, id, lease)
      elseif to == delayed then
        if was[id] == ready then from_ready[#from_ready + 1] = id end
        to_delayed[d + 1], to_delayed[d + 2] = scores[k], id
        d = d + 2
        local value = moments[k] * 4 + own_rank
        if not earliest or value < earliest then earliest = value end
      else
        if was[id] == delayed then from_delayed[#from_delayed + 1] = id end
        to_ready[r + 1], to_ready[r + 2] = scores[k], id
        r = r + 2
      end
    end
    if from_delayed[1] then call('ZREM', delayed, unpack(from_delayed)) end
    if from_ready[1] then call('ZREM', ready, unpack(from_ready)) end
    if stored[1] and not all_replace then call('HSET', bodies, unpack(chosen)) end
    if old[1] then call('HDEL', base .. 'm:' .. topic, unpack(old)) end
  end
  if notes then
    for x = 1, stored and #stored or n do
      local k = stored and is[stored[x]] or x
      if notes[k] then call('HSET', base .. 'm:' .. topic, ARGV[first + 4 * k - 4], notes[k]) end
    end
  end
  if n == 1 and fresh then
    call('ZADD', waiting and delayed or ready, score, ARGV[first])
    if waiting then lower('due', topic, score) else ring(topic) end
  else
    if d > 0 then
      call('ZADD', delayed, unpack(to_delayed))
      lower('due', topic, text(earliest))
    end
    if r > 0 then
      call('ZADD', ready, unpack(to_ready))
      ring(topic)
    end
  end
  if home ~= '' then
    -- It is remembered until it has been reconciled, whatever becomes of the job.
    local entries, stamp = {}, string.format('%.0f', now_us)
    if stored then
      for x, id in ipairs(stored) do entries[2 * x - 1], entries[2 * x] = topic .. '\0' .. id, stamp end
    else
      for k = 1, n do entries[2 * k - 1], entries[2 * k] = topic .. '\0' .. ARGV[first + 4 * k - 4], stamp end
    end
    if entries[1] then
      call('HSET', base .. 'away:' .. home, unpack(entries))
      -- Whoever moves jobs home is to know of them.
      call('ZADD', base .. 'tbell', 0, 'timer')
    end
  end
  topic = ARGV[i]
end
return out
