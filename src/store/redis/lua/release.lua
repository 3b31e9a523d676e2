--@ use clock fence bells scores numbered places
-- Sets the real due times of jobs that are held back. A job that is not held back, or does not exist, is not changed.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 the due time that marks a job as held back
--       then for each topic: topic, n, and n times: id, due as for add
-- Returns one letter for each job, in their order: d it has its due time, n it is not held back
--
-- Moves a job: delayed -> delayed, ready

local argv, held, out = ARGV, tonumber(ARGV[1]), {}
local i, topic = 2, argv[2]
while topic do
  local last = i + 1 + 2 * tonumber(argv[i + 1])
  local delayed, ready = base .. 'd:' .. topic, base .. 'r:' .. topic
  local is_ready, earliest, queued = false, nil, {}
  for j = i + 2, last, 2 do
    local id, letter = argv[j], 'n'
    local score = call('ZSCORE', delayed, id)
    if score then
      local was, rank = from_delayed(tonumber(score))
      if was == held then
        local due = moment(argv[j + 1])
        -- A moment in the past stays as it is: a timer finds the job, and applies the catch_up of its topic.
        local is_span = string.byte(argv[j + 1]) == 43
        -- The removal comes first, so that a full server also accepts the writes that follow.
        call('ZREM', delayed, id)
        if is_span and due <= now then
          call('ZADD', ready, text(rank * 1e15 + due), id)
          is_ready = true
          if rank == 0 then queued[#queued + 1], queued[#queued + 2] = id, due end
        else
          local value = due * 4 + rank
          call('ZADD', delayed, text(value), id)
          if not earliest or value < earliest then earliest = value end
        end
        letter = 'd'
      end
    end
    out[#out + 1] = letter
  end
  if queued[1] then queue(topic, queued) end
  if is_ready then ring(topic) end
  if earliest then lower('due', topic, text(earliest)) end
  i = last + 1
  topic = argv[i]
end
return table.concat(out)
