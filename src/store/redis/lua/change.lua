--@ use clock fence bells scores numbered places meter
-- Changes a delayed or ready job: its due time, its body, its priority, its limit of attempts, its headers,
-- its destination, its tags, its time to run. The job keeps its stamp.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 topic   2 id   3 due, as for add   4 priority: 1 2 3, or 'p' and a number   5 body
--       6 its own limit of attempts, or '-' for none
--       7 'h' and its headers, or '-' for none   8 its destination, as the first member of the headers, or '-' for none
--       9 its tags, as the member behind the destination, or '-' for none
--       10 the most bytes that the jobs of the topic may have, or '' for no limit
--       11 its time to run, as the member behind the links, or '-' for none
--       For 3 to 9, and for 11, '' means: no change
-- Returns d done, q the new body would need more bytes than ARGV 10 allows, n not found, c the job is leased
--
-- Moves a job: delayed, ready -> delayed, ready

-- A body with more bytes than this is big. A topic that ever had a big body is in the Redis set `big`, and is not
-- removed from it: see sizes.
local BIG = 65536
local topic, id = ARGV[1], ARGV[2]

-- Splits the members of a JSON object. Members with names that begin with a colon come first. Their values are strings
-- that contain no quotation mark. Returns these members by name, and the text of the other members.
local function taken(members)
  local own = {}
  while true do
    local one, name, others = string.match(members, '^(":(%a+)":"[^"]*"),?(.*)$')
    if not one then return own, members end
    own[name], members = one, others
  end
end

local delayed, ready, bodies = base .. 'd:' .. topic, base .. 'r:' .. topic, base .. 'b:' .. topic
local rank, from, was
local score = call('ZSCORE', delayed, id)
if score then
  was, rank = from_delayed(tonumber(score))
  from = delayed
else
  score = call('ZSCORE', ready, id)
  if not score then return call('HEXISTS', base .. 'L:' .. topic, id) == 1 and 'c' or 'n' end
  was, rank = from_ready(tonumber(score))
  from = ready
end
local notes = base .. 'm:' .. topic
local old_rank, number = rank, string.match(ARGV[4], '^p(%d+)$')
if ARGV[4] ~= '' then rank = number and 0 or tonumber(ARGV[4]) end
-- A priority that is a number is stored in the notes of its job: see numbered. So the notes change if the job gets a
-- number, or had one.
local renumbered = ARGV[4] ~= '' and (rank == 0 or old_rank == 0)
local stamp

-- The write that a server may refuse comes first, so that a refusal leaves the job unchanged. The part records
-- describes the layout of a record.
if ARGV[4] ~= '' or ARGV[5] ~= '' or ARGV[6] ~= '' then
  local record = call('HGET', bodies, id)
  stamp = struct.unpack('>I7', record, 2)
  local limited = string.byte(record) >= 4
  local limit = limited and string.sub(record, 9, 12) or ''
  local body = string.sub(record, limited and 13 or 9)
  if ARGV[6] ~= '' then limit = ARGV[6] == '-' and '' or struct.pack('>I4', tonumber(ARGV[6])) end
  if ARGV[5] ~= '' then body = ARGV[5] end
  local stored = rank == 0 and 2 or rank
  local head = struct.pack('B', limit == '' and stored or stored + 4)
  local new = head .. string.sub(record, 2, 8) .. limit .. body
  local more = #new - #record
  if ARGV[10] ~= '' and ARGV[5] ~= '' and more > 0 and counted(topic) + more > tonumber(ARGV[10]) then return 'q' end
  if #body > BIG then call('SADD', base .. 'big', topic) end
  call('HSET', bodies, id, new)
  meter(topic, more)
end
-- Removes the job from the order of the jobs with numbers before its notes change: see numbered.
if old_rank == 0 and from == ready then unqueue(topic, { id, was }) end
if ARGV[7] ~= '' or ARGV[8] ~= '' or ARGV[9] ~= '' or ARGV[11] ~= '' or renumbered then
  -- The headers are the first line of the log: see endings. The first members of this line have names that begin with a
  -- colon: the number, the destination, the tags, the links, the time to run, and the end of the job's life, in this
  -- order. (See src/model/headers.rs.)
  local noted = call('HGET', notes, id) or struct.pack('>I4B', 0, 0)
  local made = string.sub(noted, 1, 5)
  local log = string.sub(noted, 6)
  local members = string.match(log, '^h{([^\n]*)}\n') or ''
  log = string.gsub(log, '^h[^\n]*\n', '')
  local own, headers = taken(members)
  local place, tags = own.path or own.url or '', own.tags or ''
  if ARGV[7] ~= '' then headers = string.match(ARGV[7], '^h{(.*)}$') or '' end
  if ARGV[8] ~= '' then place = ARGV[8] == '-' and '' or ARGV[8] end
  if ARGV[9] ~= '' then tags = ARGV[9] == '-' and '' or ARGV[9] end
  local ttr = ARGV[11] == '' and own.ttr or ARGV[11]
  if ttr == '-' then ttr = nil end
  local own_number = rank == 0 and own.priority or ''
  if renumbered then
    -- The job keeps its place in the order of arrival.
    local _, since, at = number_of(noted)
    own_number = number and string.format('":priority":"%s.%.0f.%s"', number, since or stamp, at or '0') or ''
  end
  local made_of, links = {}, { own['then'] or '', own.next or '', own.after or '' }
  for _, some in
    ipairs({ own_number, place, tags, links[1], links[2], links[3], ttr or '', own.expires or '', headers })
  do
    if some ~= '' then made_of[#made_of + 1] = some end
  end
  if made_of[1] then log = 'h{' .. table.concat(made_of, ',') .. '}\n' .. log end
  if made .. log == struct.pack('>I4B', 0, 0) then
    call('HDEL', notes, id)
  else
    call('HSET', notes, id, made .. log)
  end
end
-- A due time in the past means now. So the lateness counts from the change, and not from the past time.
local due = ARGV[3] == '' and was or math.max(moment(ARGV[3]), now)
-- A ready job stays ready if its due time is not changed.
local to = (due <= now or ARGV[3] == '' and from == ready) and ready or delayed
if from ~= to then call('ZREM', from, id) end
if to == ready then
  call('ZADD', ready, text(rank * 1e15 + due), id)
  if rank == 0 then queue(topic, { id, due }) end
  ring(topic)
else
  score = text(due * 4 + rank)
  call('ZADD', delayed, score, id)
  lower('due', topic, score)
end
return 'd'
