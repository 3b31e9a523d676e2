--@ use clock fence bells scores meter numbered moves leases history endings circuits
--@ first moves owned_by with make bytes_of meter remove finish keep keeping_of weigh last_of erase
--@ first erase_oldest erase_of_largest
-- Settles leased jobs.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  for each topic: topic, n, and n times: id, token, outcome, attempt
--         outcome  a (ack), r and a due time (retry: 'r+60000', 'r1767225600000'), b (bury), e and milliseconds
--                  (extend: 'e30000'), l and milliseconds (answered later: as extend, and the lease has no owner from
--                  then on), h (hand back), p and a due time (postpone, as for retry), n and a text (the client that
--                  has the job, for display). R and B: as r and b, and the job has another priority from then on: 1 2
--                  3, or 'p' and a number ('R2 +60000', 'Bp5')
--         attempt  a line to be kept with the job, without a newline; '' for none
-- Returns one letter for each settlement, in their order: d done, s stale (the token is not that of the job's lease, or
-- the job was replaced)
--
-- Moves a job: leased -> nothing (ack), delayed or ready (retry), dead (bury), leased (extend, later, name), ready with
-- its attempt not counted (hand back), delayed or ready with its attempt not counted (postpone). If it was replaced
-- while it was leased -> delayed, ready; extend and name leave it leased.

local letters, sum = {}, 0
local NO_STAMP, heads = string.rep('\0', 7), {}

-- Returns what `packed` would return for a job that is delivered at its first attempt. This function is faster: due
-- time, attempts and stamp are copied from the lease of the job, and records of the same length share their head.
-- Returns nothing if the stamp must be read from the record of the job, or if no line of an attempt is given.
local function delivered(lease, line)
  local stamp, n = string.sub(lease, TOKEN + 17, TOKEN + 23), #line + 1
  if stamp == NO_STAMP or n == 1 then return end
  if not heads[n] then
    heads[n] = { struct.pack('>I4BI6', RECORD_HEAD + n, DELIVERED, now), struct.pack('>I4', n) }
  end
  local head, due, attempts = heads[n], string.sub(lease, TOKEN + 1, TOKEN + 6), string.sub(lease, TOKEN + 8, TOKEN + 11)
  return head[1] .. stamp .. due .. attempts .. head[2] .. line .. '\n'
end

-- Settles one job after its token was checked. Returns its letter.
local function settle(m, id, packed, outcome, attempt)
  local what, argument, lease = string.byte(outcome), string.sub(outcome, 2), lease_of(packed)
  local priority
  if what == 82 or what == 66 then -- R, B
    priority, argument = string.match(argument, '^(p?%d+) ?(.*)$')
    what = what + 32
  end
  if lease.replaced then
    if what ~= 101 and what ~= 110 then restore(m, id, lease) end
    return 's'
  end
  if what == 97 then -- a
    unlease(m, id, lease)
    add(m, 'gone', id)
    if lease.noted then add(m, 'forgotten', id) end
    ends(m, id, DELIVERED, lease.due, lease.attempts, appended(log_of(m.topic, id, lease), attempt), lease.stamp)
  elseif what == 114 then -- r
    local log = appended(log_of(m.topic, id, lease), attempt)
    if priority then
      log = with_priority(lease, log, priority)
      if lease.level then
        add(m, 'releveled', id, with_level(call('HGET', base .. 'b:' .. m.topic, id), lease))
      end
    end
    unlease(m, id, lease)
    note(m, id, lease.attempts, lease.crashes, log)
    place(m, id, moment(argument), lease.rank)
  elseif what == 98 then -- b
    local log = appended(log_of(m.topic, id, lease), attempt)
    bury(m, id, lease, priority and with_priority(lease, log, priority) or log)
  elseif what == 101 or what == 108 then -- e, l
    call('ZREM', base .. 'l:' .. m.topic, id)
    local deadline = moment('+' .. argument)
    m.deadline = math.min(m.deadline or deadline, deadline)
    add(m, 'extended', text(deadline), id)
    if what == 108 and lease.owner ~= '' then
      local owned = owned_by(m, lease.owner)
      owned[#owned + 1] = m.topic .. '\0' .. id
      call('HSET', base .. 'L:' .. m.topic, id, string.sub(packed, 1, OWNER - 1))
    end
  elseif what == 110 then -- n
    if lease.owner == '' then
      call('HSET', base .. 'L:' .. m.topic, id, string.sub(packed, 1, OWNER - 1) .. '\0' .. argument)
    end
  elseif what == 112 then -- p: the notes do not have this attempt, so it does not count
    unlease(m, id, lease)
    place(m, id, moment(argument), lease.rank)
  else -- h: the notes do not have this attempt, so it does not count
    end_probe(m, id)
    restore(m, id, lease)
  end
  return 'd'
end

local i = 1
while ARGV[i] do
  local topic, n = ARGV[i], tonumber(ARGV[i + 1])
  local next_topic = i + 2 + 4 * n
  i = i + 2
  while i < next_topic do
    -- A run of settlements of different jobs. If a job occurs twice, its second settlement must see the result of the
    -- first one. So the second settlement begins a new run.
    local ids, seen, runs, first = {}, {}, 0, i
    while i < next_topic and not seen[ARGV[i]] do
      runs = runs + 1
      ids[runs], seen[ARGV[i]] = ARGV[i], true
      i = i + 4
    end
    local m, leases = moves(topic), call('HMGET', base .. 'L:' .. topic, unpack(ids))
    local acked, a, owner, owned, o = {}, 0, '', nil, 0
    m.ids, m.bodies, m.events = keeping_of(topic)
    local keeps, ended_ids, records = m.ids > 0, {}, {}
    m.ended = { n = 0, ids = ended_ids, records = records }
    for k = 1, runs do
      local lease, j, letter = leases[k], first + 4 * k - 4, 's'
      if lease and string.sub(lease, 1, TOKEN) == ARGV[j + 1] then
        if ARGV[j + 2] == 'a' and string.byte(lease, TOKEN + 7) < NOTED then
          -- Most settlements are of this kind: the first attempt succeeded.
          a = a + 1
          acked[a], letter = ids[k], 'd'
          if keeps or m.events then
            local line, plain = ARGV[j + 3], not m.bodies and not m.events
            local record = plain and delivered(lease, line)
            if record then
              local n = m.ended.n + 1
              m.ended.n, ended_ids[n], records[n] = n, ids[k], record
            else
              define_others()
              local due, _, attempts, _, _, stamp = struct.unpack('>I6BI4BI4I7', lease, TOKEN + 1)
              ends(m, ids[k], DELIVERED, due, attempts, line == '' and line or line .. '\n', stamp)
            end
          end
          if (string.byte(lease, OWNER) or 0) ~= 0 then
            if string.sub(lease, OWNER) ~= owner then
              owner = string.sub(lease, OWNER)
              owned = owned_by(m, owner)
              o = #owned
            end
            o = o + 1
            owned[o] = topic .. '\0' .. ids[k]
          end
        else
          define_others()
          letter = settle(m, ids[k], lease, ARGV[j + 2], ARGV[j + 3])
          owner = ''
        end
      end
      letters[sum + k] = letter
    end
    if a > 0 then m.acked = acked end
    finish(m)
    sum = sum + runs
  end
end
return table.concat(letters)
