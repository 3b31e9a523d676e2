--@ use clock bells scores leases
-- Stores new jobs.
--
-- KEYS  1 the shard's base
-- ARGV  1 the node whose place this shard takes; '' when it is their home
--       then for each topic: topic, n, and n times: id, due, flags, body
--         due    '+span_ms' or 'moment_ms'
--         flags  priority (1 2 3), what happens when the id is taken (r replace, k keep, x reject), and the job's own
--                limit of attempts in decimal, or nothing: '2r', '1k7'
-- Gives one letter a job, in their order: n new, r replaced, k kept, x rejected
--
-- Moves a job: nothing -> delayed, ready. One that is replaced: delayed, ready -> delayed, ready; leased -> leased, where
-- the record is the replacement's, and comes to delayed or ready when the lease has ended. Dead letters do not conflict.

local byte = string.byte
local home = ARGV[1]
-- What the flags and the due time of the job looked at mean; most jobs of a batch have the same.
local flags, due, head, rank, ready, score, at

local function look(i)
  if ARGV[i + 2] ~= flags then
    flags, due = ARGV[i + 2], nil
    rank = byte(flags) - 48
    local limit = tonumber(string.sub(flags, 3))
    head = limit and struct.pack('>BI7I4', rank + 4, now_us, limit) or struct.pack('>BI7', rank, now_us)
  end
  if ARGV[i + 1] ~= due then
    due = ARGV[i + 1]
    at = moment(due)
    ready = at <= now
    score = ready and rank * 1e15 + at or at * 4 + rank
    score = text(score)
  end
end

local function remember(topic, ids)
  local key, stamp = base .. 'away:' .. home, string.format('%.0f', now_us)
  local entries = {}
  for i, id in ipairs(ids) do
    entries[2 * i - 1], entries[2 * i] = topic .. '\0' .. id, stamp
  end
  call('HSET', key, unpack(entries))
end

-- Adds jobs of one topic some of whose ids are or may be taken. `written`: their records are stored already.
local function add_among_others(topic, first, last, written)
  local ids, letters, was, is, order = {}, {}, {}, {}, {}
  for i = first, last, 4 do ids[#ids + 1] = ARGV[i] end
  local delayed = call('ZMSCORE', base .. 'd:' .. topic, unpack(ids))
  local waiting = call('ZMSCORE', base .. 'r:' .. topic, unpack(ids))
  local leased = call('ZMSCORE', base .. 'l:' .. topic, unpack(ids))
  for n, id in ipairs(ids) do was[id] = delayed[n] and 'd:' or waiting[n] and 'r:' or leased[n] and 'l:' end
  -- Of several jobs with one id the last that may have it is the job.
  for n, id in ipairs(ids) do
    local i = first + 4 * n - 4
    local rule = byte(ARGV[i + 2], 2)
    local taken = was[id] or is[id]
    letters[n] = not taken and 'n' or rule == 114 and 'r' or rule == 107 and 'k' or 'x'
    if not taken or rule == 114 then
      if not is[id] then order[#order + 1] = id end
      is[id] = i
    end
  end
  if not order[1] then return table.concat(letters) end
  local records, old, out, to_delayed, to_ready, earliest = {}, {}, { ['d:'] = {}, ['r:'] = {} }, {}, {}, nil
  for n, id in ipairs(order) do
    look(is[id])
    local from, to = was[id], ready and 'r:' or 'd:'
    records[2 * n - 1], records[2 * n] = id, head .. ARGV[is[id] + 3]
    if from then old[#old + 1] = id end
    if from == 'l:' then
      local lease = call('HGET', base .. 'L:' .. topic, id)
      call('HSET', base .. 'L:' .. topic, id, replaced(lease, at, rank))
    else
      if from and from ~= to then table.insert(out[from], id) end
      local list = ready and to_ready or to_delayed
      list[#list + 1], list[#list + 2] = score, id
      if not ready and (not earliest or at * 4 + rank < earliest) then earliest = at * 4 + rank end
    end
  end
  for from, some in pairs(out) do
    if some[1] then call('ZREM', base .. from .. topic, unpack(some)) end
  end
  if not written then call('HSET', base .. 'b:' .. topic, unpack(records)) end
  if old[1] then call('HDEL', base .. 'm:' .. topic, unpack(old)) end
  if to_delayed[1] then
    call('ZADD', base .. 'd:' .. topic, unpack(to_delayed))
    lower('due', topic, text(earliest))
  end
  if to_ready[1] then
    call('ZADD', base .. 'r:' .. topic, unpack(to_ready))
    ring(topic)
  end
  if home ~= '' then remember(topic, order) end
  return table.concat(letters)
end

local out = ''
local i, topic = 4, ARGV[2]
while topic do
  local n = tonumber(ARGV[i - 1])
  local last = i + 4 * n - 4
  -- With all of them `replace`, the number of new fields tells whether any id was taken.
  local all_replace, big = true, false
  for j = i, last, 4 do
    if byte(ARGV[j + 2], 2) ~= 114 then all_replace = false end
    if #ARGV[j + 3] > 65536 then big = true end
  end
  if big then call('SADD', base .. 'big', topic) end
  if n == 1 then
    look(i)
    local key, id, record = base .. 'b:' .. topic, ARGV[i], head .. ARGV[i + 3]
    if call(all_replace and 'HSET' or 'HSETNX', key, id, record) == 1 then
      call('ZADD', base .. (ready and 'r:' or 'd:') .. topic, score, id)
      if ready then ring(topic) else lower('due', topic, score) end
      if home ~= '' then remember(topic, { id }) end
      out = out .. 'n'
    else
      out = out .. add_among_others(topic, i, i, all_replace)
    end
  elseif all_replace then
    local records, ids, to_delayed, to_ready, d, r, earliest = {}, {}, {}, {}, 0, 0, nil
    for j = i, last, 4 do
      local id = ARGV[j]
      look(j)
      records[#records + 1] = id
      records[#records + 1] = head .. ARGV[j + 3]
      if ready then
        to_ready[r + 1], to_ready[r + 2] = score, id
        r = r + 2
      else
        to_delayed[d + 1], to_delayed[d + 2] = score, id
        d = d + 2
        if not earliest or at * 4 + rank < earliest then earliest = at * 4 + rank end
      end
    end
    if call('HSET', base .. 'b:' .. topic, unpack(records)) == n then
      if d > 0 then
        call('ZADD', base .. 'd:' .. topic, unpack(to_delayed))
        lower('due', topic, text(earliest))
      end
      if r > 0 then
        call('ZADD', base .. 'r:' .. topic, unpack(to_ready))
        ring(topic)
      end
      if home ~= '' then
        for j = i, last, 4 do ids[#ids + 1] = ARGV[j] end
        remember(topic, ids)
      end
      out = out .. string.rep('n', n)
    else
      out = out .. add_among_others(topic, i, last, true)
    end
  else
    out = out .. add_among_others(topic, i, last, false)
  end
  i = last + 6
  topic = ARGV[i - 2]
end
return out
