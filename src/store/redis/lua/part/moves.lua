-- Moves of jobs from one state to another. They are collected by topic. Then each kind of change is made with one
-- command. Needs: clock, bells, scores, meter, numbered.

-- Begins the moves of one topic. `add` puts one or two values on the list `name` of these moves.
local function moves(topic)
  return { topic = topic }
end

local function add(m, name, a, b)
  local list = m[name]
  if not list then
    list = { n = 0 }
    m[name] = list
  end
  local n = list.n
  list[n + 1] = a
  if b then
    list[n + 2] = b
    n = n + 1
  end
  list.n = n + 1
end

-- Makes a job ready, or delayed if its due time has not come.
local function place(m, id, due, rank)
  if due <= now then
    if rank == 0 then add(m, 'queued', id, due) end
    return add(m, 'ready', text(rank * 1e15 + due), id)
  end
  local score = due * 4 + rank
  if not m.earliest or score < m.earliest then m.earliest = score end
  add(m, 'delayed', text(score), id)
end

-- If a ready job with this score has a number as its priority, removes the job from the order of such jobs.
local function leave_order(m, id, score)
  score = tonumber(score)
  if score < LEVELS then add(m, 'unqueued', id, score) end
end

-- Removes a ready job with this score from r:.
local function leave_ready(m, id, score)
  add(m, 'from_ready', id)
  leave_order(m, id, score)
end

-- Returns the list of the names that the moves remove from `o:<owner>`: see owned.
local function owned_by(m, owner)
  m.owners = m.owners or {}
  m.owners[owner] = m.owners[owner] or {}
  return m.owners[owner]
end

-- Removes the lease of a job.
local function unlease(m, id, lease)
  add(m, 'unleased', id)
  if lease.owner ~= '' then
    local owned = owned_by(m, lease.owner)
    owned[#owned + 1] = m.topic .. '\0' .. id
  end
end

-- Returns when a job is due after its lease, if the outcome of the lease sets no due time. A leased job was due before
-- its lease. But the clock may now show a time before the due time: the clock was set back, or the job came from a node
-- with another clock. Then the job is due now. The due time of a replacement may be in the future, and is kept.
local function due_after(lease)
  return lease.replaced and lease.due or math.min(lease.due, now)
end

-- Ends a lease, and writes no attempt to the log. Callers use this function if the job was replaced during the lease,
-- if the process hands the job back, or if the lease is taken back. The job gets the state that it would have without
-- the lease.
local function restore(m, id, lease)
  unlease(m, id, lease)
  place(m, id, due_after(lease), lease.rank)
end

local function with(command, prefix, m, name)
  if m[name] then call(command, base .. prefix .. m.topic, unpack(m[name])) end
end

-- Removals come first. A server with full memory allows a script to remove, and after the first removal it also allows
-- the other writes of the same script. So scripts that remove jobs still work on such a server, and only adds are
-- refused.
local function make(m)
  with('ZREM', 'd:', m, 'from_delayed')
  with('ZREM', 'r:', m, 'from_ready')
  if m.unqueued then unqueue(m.topic, m.unqueued) end
  with('ZREM', 'l:', m, 'acked')
  with('HDEL', 'L:', m, 'acked')
  if m.acked then remove('b:', m.topic, m.acked) end
  with('ZREM', 'l:', m, 'unleased')
  with('HDEL', 'L:', m, 'unleased')
  if m.gone then remove('b:', m.topic, m.gone) end
  with('HDEL', 'm:', m, 'forgotten')
  if m.records then
    with('HSET', 'b:', m, 'records')
    local bytes = 0
    for i = 2, #m.records, 2 do bytes = bytes + #m.records[i] end
    meter(m.topic, bytes)
  end
  -- (The lengths of these records stay the same, so there are no bytes to count.)
  with('HSET', 'b:', m, 'releveled')
  with('HSET', 'm:', m, 'notes')
  if m.owners then
    for owner, ids in pairs(m.owners) do call('SREM', base .. 'o:' .. owner, unpack(ids)) end
  end
  if m.extended then
    with('ZADD', 'l:', m, 'extended')
    lower('end', m.topic, text(m.deadline))
  end
  if m.delayed then
    with('ZADD', 'd:', m, 'delayed')
    lower('due', m.topic, text(m.earliest))
  end
  if m.ready then
    with('ZADD', 'r:', m, 'ready')
    if m.queued then queue(m.topic, m.queued) end
    ring(m.topic)
  end
end
