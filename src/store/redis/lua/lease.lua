--@ use clock fence bells scores numbered order places records leases sizes circuits
--@ first moment ring lower text from_ready limit_of stamp_of fitting
-- Leases ready jobs, topic by topic, in the order of priority and due time. If priority and due time are equal, jobs
-- with a number as priority are leased in the order of arrival. Leases no job of a paused topic, and only one job of a
-- topic with a half-open circuit.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 how many jobs at most   2 16 random bytes, never used twice   3 the owner's tag, '' for none
--       4 how many other topics to look at for ready jobs, at most   5 how many bytes of big bodies at most
--       then for each topic: topic, max jobs, hold (how long a lease lasts) in ms, limit of attempts for jobs that have
--         no limit of their own, how many of its jobs may be leased on this shard at once ('' for no limit), and '1' if
--         a job that has a ttr of its own is leased for this ttr instead of the hold
-- Returns three arrays, or more
--       1 for each topic with leased jobs: an array of topic, deadline, then for each job: id, record, attempt,
--         due. The token of the n-th job of the whole answer (n begins at 1): ARGV 2, then n as four bytes, big-endian
--       2 topics that have ready jobs left, each followed by how many: all such topics of the call, and some others
--       3 topics with ready jobs that wait for their circuit: all such topics of the call, and some others. For each:
--         topic, for how many ms the circuit lets no job through, and a number. If this call let a job through (it is
--         in the first array), the number is how often the circuit was opened. Otherwise the number is 0
--       4 if some jobs have headers: the number of each of these jobs, as in its token, followed by the headers
--       5 if some leases last for a job's own ttr: the number of each of these jobs, followed by the deadline
--
-- Moves a job: ready -> leased

local room, prefix, owner, others, bytes = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local groups, left, waiting, headers, deadlines, owned, number, probes = {}, {}, {}, nil, nil, {}, 0, {}
local tail = ZEROS .. owner
-- If the call arrives so late that its leases were already taken back, it leases nothing: see take_back.
if call('EXISTS', base .. 'w:' .. prefix) == 1 then return { {}, {}, {} } end

-- Leases up to `n` jobs of a topic. Returns whether the topic had ready jobs.
local function take(topic, n, hold, limit, is_own_ttr)
  local ready, bodies = base .. 'r:' .. topic, base .. 'b:' .. topic
  local found, ids, members = call('ZRANGE', ready, 0, n - 1, 'WITHSCORES'), {}, nil
  if not found[1] then return false end
  if tonumber(found[2]) < LEVELS then
    define_others()
    found, members = in_order(topic, n, found)
  end
  for i = 1, #found / 2 do ids[i] = found[2 * i - 1] end
  n = fitting(topic, bodies, ids, bytes)
  for i = n + 1, #ids do ids[i] = nil end
  local records, notes = call('HMGET', bodies, unpack(ids)), call('HMGET', base .. 'm:' .. topic, unpack(ids))
  if members then
    call('ZREM', ready, unpack(ids))
    call('ZREM', base .. 'q:' .. topic, unpack(members, 1, n))
    mend(topic)
  else
    call('ZREMRANGEBYRANK', ready, 0, n - 1)
  end
  local deadline = moment('+' .. hold)
  local until_text, first, own = text(deadline), deadline, nil
  local jobs, places, leases, at, last, due, rank = { topic, deadline }, {}, {}, 0, nil, nil, nil
  for i = 1, n do
    local id, record, noted = ids[i], records[i], notes[i]
    if found[2 * i] ~= last then
      last = found[2 * i]
      due, rank = from_ready(tonumber(last))
    end
    -- (A ready entry without a record is no job. It is dropped.)
    if record then
      local attempts, crashes, mark = 1, 0, 0
      if noted then
        attempts, crashes = struct.unpack('>I4B', noted)
        attempts, mark = attempts + 1, NOTED
      end
      number = number + 1
      if mark == NOTED and string.byte(noted, 6) == 104 then -- h
        headers = headers or {}
        headers[#headers + 1] = number
        headers[#headers + 1] = string.match(noted, '[^\n]*', 7)
        -- (Inside JSON strings, quotation marks have backslashes. So the pattern matches only where `:ttr` is a name.)
        local ttr = is_own_ttr and string.match(headers[#headers], '":ttr":"(%d+)"')
        if ttr then
          local moment = moment('+' .. ttr)
          own, deadlines = own or {}, deadlines or {}
          own[at + 1], first = text(moment), math.min(first, moment)
          deadlines[#deadlines + 1], deadlines[#deadlines + 2] = number, moment
        end
      end
      leases[at + 1] = id
      leases[at + 2] = prefix
        .. struct.pack(
          '>I4I6BI4BI4I7',
          number,
          due,
          rank + mark,
          attempts,
          crashes,
          limit_of(record) or limit,
          stamp_of(record)
        )
        .. tail
      jobs[2 * at + 3], jobs[2 * at + 4], jobs[2 * at + 5], jobs[2 * at + 6] = id, record, attempts, due
      at = at + 2
      bytes = bytes - #record
      if owner ~= '' then owned[number] = topic .. '\0' .. id end
    end
  end
  if at > 0 then
    -- The last job is added first, because Redis searches a short zset from its front.
    for i = 1, at, 2 do
      places[i], places[i + 1] = own and own[at - i] or until_text, leases[at - i]
    end
    call('ZADD', base .. 'l:' .. topic, unpack(places))
    call('HSET', base .. 'L:' .. topic, unpack(leases))
    lower('end', topic, text(first))
    groups[#groups + 1] = jobs
  end
  room = room - n
  return true
end

-- Adds to the answer how many ready jobs of a topic are left. Returns whether any are left.
local function tell(topic)
  local ready = call('ZCARD', base .. 'r:' .. topic)
  if ready > 1 and probes[topic] then ready = 1 end
  if ready > 0 then
    left[#left + 1] = topic
    left[#left + 1] = ready
  end
  return ready > 0
end

local leasable, idle = {}, {}
-- A paused topic stays as it is until it is resumed. Its ring in `bell` has no use, and is removed below.
local open, muted = nil, {}
local asked = (#ARGV - 5) / 6
if 4 * asked >= call('SCARD', base .. 'leasable') then
  for _, topic in ipairs(call('SMEMBERS', base .. 'leasable')) do leasable[topic] = true end
  for _, topic in ipairs(call('SMEMBERS', base .. 'paused')) do
    if string.byte(topic) == 33 then
      open = open or {}
      open[#open + 1] = string.sub(topic, 2)
    elseif leasable[topic] then
      leasable[topic] = nil
      muted[#muted + 1] = topic
    end
  end
else
  -- If there are many topics, looks at the topics of the call, and at some random other topics. So each topic is
  -- returned sooner or later.
  local both = {}
  for i = 6, #ARGV, 6 do leasable[ARGV[i]] = true end
  if others > 0 then
    local some = call('SRANDMEMBER', base .. 'leasable', math.min(others, math.max(asked, 16)))
    for _, topic in ipairs(some) do leasable[topic] = true end
  end
  for topic in pairs(leasable) do both[#both + 1], both[#both + 2] = topic, '!' .. topic end
  for i = 1, #both, 1000 do
    local last = math.min(i + 999, #both)
    for j, is in ipairs(call('SMISMEMBER', base .. 'paused', unpack(both, i, last))) do
      local word = both[i + j - 1]
      if is == 1 and j % 2 == 1 then
        leasable[word] = nil
        muted[#muted + 1] = word
      elseif is == 1 and leasable[both[i + j - 2]] then
        open = open or {}
        open[#open + 1] = both[i + j - 2]
      end
    end
  end
end
for i = 1, #muted, 1000 do call('ZREM', base .. 'bell', unpack(muted, i, math.min(i + 999, #muted))) end

-- Notes that a topic's circuit lets no job through for `ms` milliseconds.
local function wait(topic, ms, opens)
  leasable[topic] = nil
  call('ZREM', base .. 'bell', topic)
  local n = #waiting
  waiting[n + 1], waiting[n + 2], waiting[n + 3] = topic, ms, opens
end

if open then define_others() end
for _, topic in ipairs(open or {}) do
  if leasable[topic] and call('EXISTS', base .. 'r:' .. topic) == 1 then
    local till, probe, opens = circuit_of(topic)
    local ms = math.max(till or 0, probe or 0) - now
    if ms > 0 then wait(topic, ms, 0) elseif till then probes[topic] = opens end
  end
end
for i = 6, #ARGV, 6 do
  local topic, n, most = ARGV[i], math.min(tonumber(ARGV[i + 1]), room), ARGV[i + 4]
  if most ~= '' then n = math.max(0, math.min(n, tonumber(most) - call('ZCARD', base .. 'l:' .. topic))) end
  local opens, before = probes[topic], number
  if opens then n = math.min(n, 1) end
  if leasable[topic] then
    leasable[topic] = nil
    local found = n > 0 and bytes > 0 and take(topic, n, ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 5] == '1')
    if opens and number > before then
      -- The next job is let through when the result of this job is reported, or at the latest when its lease has ended.
      local till, _, _, since, why = circuit_of(topic)
      write_circuit(topic, till, moment('+' .. ARGV[i + 2]), opens, since, why)
      wait(topic, tonumber(ARGV[i + 2]), opens)
    elseif tell(topic) and (most == '' or number > before) then
      -- The first write must be a removal, for a server with full memory: see moves. If no job was leased so far, this
      -- call may have made no removal yet.
      if number == 0 then call('ZREM', base .. 'bell', topic) end
      ring(topic)
    elseif not found and most == '' then
      idle[#idle + 1] = topic
    end
  end
end
if owned[1] then call('SADD', base .. 'o:' .. owner, unpack(owned)) end
for topic in pairs(leasable) do
  if others == 0 then break end
  others = others - 1
  if not tell(topic) then idle[#idle + 1] = topic end
end
-- A topic that had no ready jobs when the call began is removed from `leasable` until the topic has ready jobs again.
-- (A topic that this call has emptied stays, because it is likely to have more jobs soon.)
for i = 1, #idle, 1000 do
  call('SREM', base .. 'leasable', unpack(idle, i, math.min(i + 999, #idle)))
  call('ZREM', base .. 'bell', unpack(idle, i, math.min(i + 999, #idle)))
end
return { groups, left, waiting, headers, deadlines }
