--@ use clock fence batch bells scores numbered places meter quota leases history unsettled latest_letters late_letters
--@ first moment ring lower text keeping_of
-- Stores new jobs.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence   3 for a batch only: see batch
-- ARGV  for each topic: topic, n, limits, flags, due, and n times: id, body
--       where flags or due differ: topic, n, limits, '', '', and n times: id, body, flags, due
--         limits the limits that the adds must keep, or '' for none: see quota
--         flags  rank (1 2 3, or 0 for a number as priority); what happens if the id is taken (r replace, k keep,
--                x reject); the job's own limit of attempts in decimal, or nothing; '+' and the number of attempts that
--                were made before the job came here, if there were any; 'p' and the number of its priority, if the
--                rank is 0; 'h' and its headers, if it has some: '2r', '1k7', '2k+3', '0rp5', '2r7h{"a":"b"}'
--         due    '+span_ms' or 'moment_ms'
--       at the end, for a batch only: see late_letters
-- Returns eight bytes for each job, in the order of the jobs: a letter (n new, r replaced, k kept, x rejected), and 7
-- bytes, big-endian: the due time in ms of the job that is stored now; 0 if the add was rejected. Or q: a limit does
-- not allow the add. Then the 7 bytes are the number of the limit (1 byte), and in how many ms to try again (6 bytes)
--
-- Moves a job: nothing -> delayed, ready. A job that is replaced: delayed, ready -> delayed, ready; leased -> leased.
-- If the replaced job is leased, its record becomes the record of the replacement. The replacement becomes delayed or
-- ready when the lease has ended. Dead letters do not conflict.

-- A body with more bytes than this is big. A topic that ever had a big body stays in `big`: see sizes.
local BIG = 65536
-- If a call has at most this number of jobs of a topic, a separate command for each job takes less time than commands
-- that handle all these jobs at once.
local FEW = 3
local REPLACE, KEEP = 114, 107
local argv, byte, pack = ARGV, string.byte, struct.pack
local out = ''

if KEYS[3] then
  define_others()
  remove_late_letters()
end
local i = 1
while argv[i] do
  local topic, n, limits, shared_flags, shared_due = argv[i], tonumber(argv[i + 1]), argv[i + 2], argv[i + 3], argv[i + 4]
  local first, alike = i + 5, shared_flags ~= ''
  local step, before_topic, asked, refused = alike and 2 or 4, #out, n, nil
  i = first + step * n
  if limits ~= '' or counting and call('HEXISTS', base .. 'bytes', topic) == 1 then
    define_others()
    n, refused = admit(topic, limits, first, n, step, alike and shared_flags)
  end
  -- Stores `n` jobs of the topic. Their arguments begin at argument `first`. (This code is not a function, because a
  -- function with so many variables from outside takes a microsecond to define.)
  if n > 0 then
    local last = first + step * n - 1
    local bodies, delayed, ready = base .. 'b:' .. topic, base .. 'd:' .. topic, base .. 'r:' .. topic
    -- `wait`: how many of the jobs wait for their due time. `earliest`: the lowest score of these jobs.
    local all_replace, some_noted, big, wait, earliest = true, false, false, 0, nil
    -- `list` has each id and its record, from position `from` to position `to`. So the commands use `list` directly,
    -- and no other list of the ids and records is made.
    local list, from, to = argv, first, last
    -- If the flags or the due times of the jobs differ, these lists have the values of each job.
    local scores, moments, ranks, rules, notes
    if not alike then list, from, to, scores, moments, ranks, rules, notes = {}, 1, 2 * n, {}, {}, {}, {}, {} end
    -- The flags and the due time of the previous job, and the values that were made from them. Most jobs have the same
    -- flags and due time, so these values need not be made again. If the priority of a job is a number, the notes of
    -- the job have three parts: `noted`, then the place of the job in the call, then `rest`. See the function
    -- `numbered`.
    local flags, due, rank, rule, head, noted, rest, at, waiting, score
    local k, its_flags, its_due = 0, shared_flags, shared_due
    for j = first, last, step do
      if not alike then its_flags, its_due = argv[j + 2], argv[j + 3] end
      if its_flags ~= flags then
        flags, due = its_flags, nil
        rank, rule = byte(flags, 1, 2)
        rank = rank - 48
        local stored = rank == 0 and 2 or rank
        head, noted, rest = pack('>BI7', stored, now_us), false, nil
        if #flags > 2 then
          local limit, attempts, number, headers = string.match(flags, '^..(%d*)%+?(%d*)p?(%d*)(.*)$')
          if limit ~= '' then head = pack('>BI7I4', stored + 4, now_us, tonumber(limit)) end
          if number ~= '' then
            noted = pack('>I4B', tonumber(attempts) or 0, 0)
              .. string.format('h{":priority":"%s.%.0f.', number, now_us)
            rest = (headers == '' and '"}' or '",' .. string.sub(headers, 3)) .. '\n'
            some_noted = true
          elseif attempts .. headers ~= '' then
            noted = pack('>I4B', tonumber(attempts) or 0, 0) .. (headers ~= '' and headers .. '\n' or '')
            some_noted = true
          end
        end
        if rule ~= REPLACE then all_replace = false end
      end
      if its_due ~= due then
        due = its_due
        at = moment(due)
        -- A due time in the past means now. So the lateness, and the age of the oldest ready job, are counted from the
        -- add. Jobs of a batch keep their due time, because they may have waited for long, and the `catch_up` of their
        -- topic must see this.
        if at < now and not KEYS[3] then at = now end
        waiting = at > now
        score = text(waiting and at * 4 + rank or rank * 1e15 + at)
        if waiting and (not earliest or at * 4 + rank < earliest) then earliest = at * 4 + rank end
      end
      if waiting then wait = wait + 1 end
      local body = argv[j + 1]
      if #body > BIG then big = true end
      if alike then
        argv[j + 1] = head .. body
      else
        k = k + 1
        list[2 * k - 1], list[2 * k] = argv[j], head .. body
        scores[k], moments[k], ranks[k], rules[k] = score, at, rank, rule
        notes[k] = rest and noted .. k .. rest or noted
      end
    end
    if big then call('SADD', base .. 'big', topic) end
    -- If there are few jobs, each new id is written by itself, and the records of ids that are taken do not change yet.
    -- If there are more jobs, and all of them have the rule `replace`, all are written with one command. The number of
    -- new fields then shows whether any id was taken. dq keeps a record of each replaced job, so such jobs are read
    -- before they are replaced.
    local m, fresh, before, are_few = nil, nil, nil, n <= FEW
    if are_few then
      fresh = true
      for k = from, to, 2 do fresh = call('HSETNX', bodies, list[k], list[k + 1]) == 1 and fresh end
    elseif all_replace then
      m, before = { topic = topic }, {}
      m.ids, m.bodies = keeping_of(topic)
      if m.ids > 0 then
        local ids = {}
        for k = 1, n do ids[k] = list[from + 2 * k - 2] end
        before = call('HMGET', bodies, unpack(ids))
      end
      fresh = call('HSET', bodies, unpack(list, from, to)) == n
    end
    -- `stored` and `is` are set if an id may be taken, if some jobs have notes, or if only some jobs wait. `stored`:
    -- the ids of the jobs that are stored. `is`: for each id, which of the jobs with this id is stored.
    local stored, is
    if fresh and not some_noted and (wait == n or wait == 0) then
      -- In the list, the score is written before each id, in the place of the record of the previous job.
      if alike then
        out = out .. string.rep(pack('>BI7', 110, at), n)
        for k = from, to, 2 do list[k - 1] = score end
      else
        for k = 1, n do
          out = out .. pack('>BI7', 110, moments[k])
          list[2 * k - 2] = scores[k]
        end
      end
      call('ZADD', wait > 0 and delayed or ready, unpack(list, from - 1, to - 1))
      if wait > 0 then lower('due', topic, alike and score or text(earliest)) else ring(topic) end
    else
      define_others()
      if not m then
        m, before = { topic = topic }, {}
        m.ids, m.bodies = keeping_of(topic)
      end
      if alike then
        scores, moments, ranks, rules, notes = {}, {}, {}, {}, {}
        for x = 1, n do
          scores[x], moments[x], ranks[x], rules[x] = score, at, rank, rule
          notes[x] = rest and noted .. x .. rest or noted
        end
      end
      local ids = {}
      for k = 1, n do ids[k] = argv[first + step * k - step] end
      -- Jobs with a number as priority: see numbered. `left`: such jobs that were ready before. `queued`: such jobs
      -- that are ready now.
      local was, was_due, was_rank, letters, old, ended, left, queued = {}, {}, {}, {}, {}, {}, {}, {}
      stored, is = {}, {}
      if not fresh then
        -- An id is taken, or may be taken, or occurs twice.
        local in_delayed = call('ZMSCORE', delayed, unpack(ids))
        local in_ready = call('ZMSCORE', ready, unpack(ids))
        local in_leased = call('ZMSCORE', base .. 'l:' .. topic, unpack(ids))
        for x, id in ipairs(ids) do
          local wait, place = tonumber(in_delayed[x] or 0), tonumber(in_ready[x] or 0)
          was[id] = in_delayed[x] and delayed or in_ready[x] and ready or in_leased[x] and 'leased'
          -- The scores contain the due times: see scores.
          was_due[id] = in_delayed[x] and (wait - wait % 4) / 4 or place % 1e15
          if in_ready[x] and place < LEVELS then was_rank[id] = 0 end
          if was[id] and m.ids > 0 then ended[id] = { in_delayed[x], in_ready[x], before[x] or nil } end
        end
      end
      -- If several jobs of the call have the same id, a later job takes the place of an earlier one if the rule of the
      -- later job is `replace`.
      for x, id in ipairs(ids) do
        local taken = was[id] or is[id]
        if not taken then
          letters[x] = pack('>BI7', 110, moments[x])
        elseif rules[x] == REPLACE then
          letters[x] = pack('>BI7', 114, moments[x])
        elseif rules[x] == KEEP then
          local due = is[id] and moments[is[id]] or was_due[id]
          -- In the stored bytes of a lease, the due time comes directly after the token. See leases.
          if not is[id] and was[id] == 'leased' then
            due = struct.unpack('>I6', call('HGET', base .. 'L:' .. topic, id), 21)
          end
          letters[x] = pack('>BI7', 107, due)
        else
          letters[x] = pack('>BI7', 120, 0)
        end
        if not taken or rules[x] == REPLACE then
          if not is[id] then stored[#stored + 1] = id end
          is[id] = x
        end
      end
      out = out .. table.concat(letters)
      local chosen, from_delayed, from_ready, to_delayed, to_ready, d, r = {}, {}, {}, {}, {}, 0, 0
      earliest = nil
      for x, id in ipairs(stored) do
        local k = is[id]
        local zset = moments[k] > now and delayed or ready
        chosen[2 * x - 1], chosen[2 * x] = id, list[from + 2 * k - 1]
        if was[id] then old[#old + 1] = id end
        if was[id] == ready and was_rank[id] == 0 then left[#left + 1], left[#left + 2] = id, was_due[id] end
        if ended[id] then
          local packed = was[id] == 'leased' and call('HGET', base .. 'L:' .. topic, id)
          ends_unsettled(m, id, REPLACED, ended[id][1], ended[id][2], packed, ended[id][3])
        end
        if was[id] == 'leased' then
          -- The lease keeps its token (20 bytes). From the 33rd byte on, it keeps the limit of attempts, the stamp and
          -- the owner. The due time and the priority are now those of the replacement, and the mark WAS_REPLACED (8) is
          -- set. See leases.
          local lease = call('HGET', base .. 'L:' .. topic, id)
          lease = string.sub(lease, 1, 20)
            .. pack('>I6BI4B', moments[k], ranks[k] + 8, 0, 0)
            .. string.sub(lease, 33)
          call('HSET', base .. 'L:' .. topic, id, lease)
        elseif zset == delayed then
          if was[id] == ready then from_ready[#from_ready + 1] = id end
          to_delayed[d + 1], to_delayed[d + 2] = scores[k], id
          d = d + 2
          local value = moments[k] * 4 + ranks[k]
          if not earliest or value < earliest then earliest = value end
        else
          if was[id] == delayed then from_delayed[#from_delayed + 1] = id end
          to_ready[r + 1], to_ready[r + 2] = scores[k], id
          r = r + 2
          if ranks[k] == 0 then queued[#queued + 1], queued[#queued + 2] = id, moments[k] end
        end
      end
      if from_delayed[1] then call('ZREM', delayed, unpack(from_delayed)) end
      if from_ready[1] then call('ZREM', ready, unpack(from_ready)) end
      if left[1] then unqueue(topic, left) end
      if stored[1] and (are_few or not all_replace) then call('HSET', bodies, unpack(chosen)) end
      if old[1] then call('HDEL', base .. 'm:' .. topic, unpack(old)) end
      for _, id in ipairs(stored) do
        if notes[is[id]] then call('HSET', base .. 'm:' .. topic, id, notes[is[id]]) end
      end
      if d > 0 then
        call('ZADD', delayed, unpack(to_delayed))
        lower('due', topic, text(earliest))
      end
      if r > 0 then
        call('ZADD', ready, unpack(to_ready))
        if queued[1] then queue(topic, queued) end
        ring(topic)
      end
      keep(m)
    end
  end
  if refused then
    out = string.sub(out, 1, before_topic) .. woven(string.sub(out, before_topic + 1), refused, asked)
  end
end
return out
