--@ use clock fence bells scores numbered places records leases
-- Leases one delayed or ready job, even if other jobs come before it, or its topic is paused. A job that is held back
-- stays as it is.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 topic   2 id   3 hold in ms   4 16 random bytes, never used twice   5 the owner's tag, '' for none
--       6 the limit of attempts, if the job has none of its own   7 the due time of jobs that are held back
-- Returns deadline, record, attempt, due, headers ('' for none). The token is ARGV 4 and 1 as four bytes, big-endian.
-- Returns nothing if there is no such job, or if the job is leased or held back
--
-- Moves a job: delayed, ready -> leased

local topic, id, prefix, owner = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
-- If the call arrives so late that its lease was already taken back, it leases nothing: see take_back.
if call('EXISTS', base .. 'w:' .. prefix) == 1 then return {} end
local from, due, rank = base .. 'r:' .. topic, nil, nil
local score = call('ZSCORE', from, id)
if score then
  due, rank = from_ready(tonumber(score))
  if rank == 0 then unqueue(topic, { id, due }) end
else
  from = base .. 'd:' .. topic
  score = call('ZSCORE', from, id)
  if not score then return {} end
  due, rank = from_delayed(tonumber(score))
  if due == tonumber(ARGV[7]) then return {} end
  -- If the lease ends without an outcome, the job must be ready, and not delayed as before.
  due = math.min(due, now)
end
local record = call('HGET', base .. 'b:' .. topic, id)
-- The first write must be a removal, for a server with full memory: see moves. (An entry without a record is no job. It
-- is dropped.)
call('ZREM', from, id)
if not record then return {} end
local noted = call('HGET', base .. 'm:' .. topic, id)
local attempts, crashes, mark, headers = 1, 0, 0, ''
if noted then
  attempts, crashes = struct.unpack('>I4B', noted)
  attempts, mark = attempts + 1, NOTED
  if string.byte(noted, 6) == 104 then headers = string.match(noted, '[^\n]*', 7) end -- h
end
local deadline = moment('+' .. ARGV[3])
local lease = prefix
  .. struct.pack(
    '>I4I6BI4BI4I7',
    1,
    due,
    rank + mark,
    attempts,
    crashes,
    limit_of(record) or tonumber(ARGV[6]),
    stamp_of(record)
  )
  .. ZEROS
  .. owner
call('ZADD', base .. 'l:' .. topic, text(deadline), id)
call('HSET', base .. 'L:' .. topic, id, lease)
lower('end', topic, text(deadline))
if owner ~= '' then call('SADD', base .. 'o:' .. owner, topic .. '\0' .. id) end
return { deadline, record, attempts, due, headers }
