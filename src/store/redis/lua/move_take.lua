--@ use clock fence scores numbered leases
-- Returns all that is stored of some live jobs.
--
-- KEYS  1 the shard's base   2 the base, followed by the set: see fence
-- ARGV  1 topic   2 how many bytes of bodies at most   then ids
-- Returns how many of the ids it has looked at, then for each job that exists six values: id, record, notes, state (d,
-- r or l), its score in that state, lease. For a leased job, the score is how long its lease still lasts, in ms. (It is
-- not the deadline, because the clock of the home may differ)
--
-- Changes the state of no job.

local topic, bytes, out, seen = ARGV[1], tonumber(ARGV[2]), { 0 }, 0
for i = 3, #ARGV do
  local id = ARGV[i]
  local size = call('HSTRLEN', base .. 'b:' .. topic, id)
  bytes = bytes - size
  if bytes < 0 and i > 3 then break end
  seen = seen + 1
  if size > 0 then
    local record, noted = call('HGET', base .. 'b:' .. topic, id), call('HGET', base .. 'm:' .. topic, id) or ''
    local state, score, packed = 'd', call('ZSCORE', base .. 'd:' .. topic, id), ''
    if not score then
      state, score = 'r', call('ZSCORE', base .. 'r:' .. topic, id)
    end
    if not score then
      local deadline = call('ZSCORE', base .. 'l:' .. topic, id) or now
      state, score, packed = 'l', text(deadline - now), call('HGET', base .. 'L:' .. topic, id) or ''
      -- The last release without sets hid each job that it moved: it gave the job a lease without an owner. The mark 16
      -- beside the rank shows such a lease.
      if packed == '' or string.byte(packed, TOKEN + 7) >= 16 then
        local due, bits = now, string.byte(record)
        if packed ~= '' then due, bits = struct.unpack('>I6B', packed, TOKEN + 1) end
        local rank = number_of(noted) and 0 or bits % 4
        state, packed = due <= now and 'r' or 'd', ''
        score = text(state == 'r' and rank * 1e15 + due or due * 4 + rank)
      end
    end
    for _, value in ipairs({ id, record, noted, state, score, packed }) do out[#out + 1] = value end
  end
end
out[1] = seen
return out
