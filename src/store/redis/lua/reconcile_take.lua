--@ use clock bells scores places records leases moves
-- Looks at jobs that are to be moved to another node, their home, and takes those that can be moved out of delivery. First
-- step of four: take here, put there, drop here, forget there.
--
-- KEYS  1 the base of the shard that holds them
-- ARGV  1 the home node   2 where to go on: '0' at first; or 'ids'   3 about how many   4 16 random bytes, never given
--       twice   5 how many bytes of bodies at most   6 after how many ms a job that was taken and neither dropped nor given
--       back may be taken again; then with 'ids': topic, id of each job to take, whatever is noted of it
-- Gives an array: where to go on ('0' when all were seen), 1 if some were passed over for want of room or because
-- somebody else has taken them (else 0), this shard's clock in ms, then for each entry seven values: topic, id, stamp,
-- token, record, due, notes. Token to notes are '' where there is no job to move: it has ended, or is leased,
-- or the id is another job's by now. With 'ids': the token of one that somebody else has taken is '?', and of one that was
-- added here in the home's place and has ended, which the home has not been told, '-'; there are no other entries without a
-- live job
--
-- Moves a job: delayed, ready -> leased, as one that is hidden: nobody can settle it, and it does not run out. It comes
-- back by settle with 'h' and its token.

local home, prefix, left, again_after = ARGV[1], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local by_ids = ARGV[2] == 'ids'
local scan = by_ids and { '0', {} } or call('HSCAN', base .. 'stray:' .. home, ARGV[2], 'COUNT', ARGV[3])
local out, passed, number = { scan[1], 0, text(now) }, 0, 0
local seen = {}

-- Gives what a job is known by while it is on its way, or nothing when it cannot go; and whether it could later.
local function hide(topic, id, stamp)
  local bodies = base .. 'b:' .. topic
  local size = call('HSTRLEN', bodies, id)
  if size == 0 then return nil, false end
  local packed = call('HGET', base .. 'L:' .. topic, id)
  local lease = packed and lease_of(packed)
  if lease and not lease.hidden then return nil, false end
  if size > left and left < tonumber(ARGV[5]) then return nil, true end
  if lease and not lease.replaced and math.abs(now - tonumber(lease.owner)) < again_after then return nil, true end
  left = left - size
  local record = call('HGET', bodies, id)
  if string.format('%.0f', stamp_of(record)) ~= stamp then
    -- Another job has the id. One that replaced a hidden one need not wait any longer.
    if lease then
      local m = moves(topic)
      restore(m, id, lease)
      make(m)
    end
    return nil, false
  end
  local due, rank
  if lease then
    due, rank = lease.due, lease.rank
  else
    local score = call('ZSCORE', base .. 'd:' .. topic, id)
    if score then
      due, rank = from_delayed(tonumber(score))
    else
      due, rank = from_ready(tonumber(call('ZSCORE', base .. 'r:' .. topic, id)))
    end
  end
  local attempts, crashes, noted = 0, 0, call('HGET', base .. 'm:' .. topic, id)
  if noted then attempts, crashes = struct.unpack('>I4B', noted) end
  number = number + 1
  local token = prefix .. struct.pack('>I4', number)
  call('ZREM', base .. 'd:' .. topic, id)
  call('ZREM', base .. 'r:' .. topic, id)
  call('ZADD', base .. 'l:' .. topic, text(LATEST), id)
  local marks = rank + HIDDEN + (noted and NOTED or 0)
  call('HSET', base .. 'L:' .. topic, id,
    token .. struct.pack('>I6BI4BI4', due, marks, attempts, crashes, 0) .. ZEROS .. text(now))
  return { token, record, text(due), noted or '' }
end

for i = 7, by_ids and #ARGV or 0, 2 do
  local topic, id = ARGV[i], ARGV[i + 1]
  local record = call('HGET', base .. 'b:' .. topic, id)
  local name = topic .. '\0' .. id
  local ended = not record and call('HGET', base .. 'away:' .. home, name)
  if ended then
    for _, value in ipairs({ topic, id, ended, '-', '', '', '' }) do out[#out + 1] = value end
  elseif record and not seen[name] then
    seen[name] = true
    local stamp = string.format('%.0f', stamp_of(record))
    local job, later = hide(topic, id, stamp)
    if later then passed = 1 end
    for _, value in ipairs({ topic, id, stamp, unpack(job or { later and '?' or '', '', '', '' }) }) do
      out[#out + 1] = value
    end
  end
end
for i = 1, #scan[2], 2 do
  local name, stamp = scan[2][i], scan[2][i + 1]
  if not seen[name] then
    seen[name] = true
    local cut = string.find(name, '\0', 1, true)
    local topic, id = string.sub(name, 1, cut - 1), string.sub(name, cut + 1)
    local job, later = hide(topic, id, stamp)
    if later then
      passed = 1
    else
      for _, value in ipairs({ topic, id, stamp, unpack(job or { '', '', '', '' }) }) do out[#out + 1] = value end
    end
  end
end
out[2] = passed
return out
