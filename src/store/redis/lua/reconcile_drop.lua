--@ use clock bells scores records leases moves
-- Lets go of jobs that their home has taken over, and of what was remembered of them. Third step of four: see
-- reconcile_take.
--
-- KEYS  1 the base of the shard that held them
-- ARGV  1 the home node, then for each entry: topic, id, stamp, token, as they were given
-- Gives one letter an entry, in their order: g gone; s something has changed since it was taken, and it stays for the next
-- time
--
-- Moves a job: leased, as one that is hidden -> nothing; replaced meanwhile -> delayed, ready

local away = base .. 'away:' .. ARGV[1]
local letters = {}
for i = 2, #ARGV, 4 do
  local topic, id, stamp, token = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local name = topic .. '\0' .. id
  local settled = false
  if token == '' then
    -- It had no job to move. Does it now?
    local record = call('HGET', base .. 'b:' .. topic, id)
    settled = not record or string.format('%.0f', stamp_of(record)) ~= stamp
  else
    local packed = call('HGET', base .. 'L:' .. topic, id)
    if packed and string.sub(packed, 1, TOKEN) == token then
      local m, lease = moves(topic), lease_of(packed)
      if lease.replaced then
        restore(m, id, lease)
      else
        unlease(m, id, lease)
        add(m, 'gone', id)
        add(m, 'forgotten', id)
      end
      make(m)
      settled = true
    end
  end
  if settled and call('HGET', away, name) == stamp then
    call('HDEL', away, name)
    letters[#letters + 1] = 'g'
  else
    letters[#letters + 1] = 's'
  end
end
return table.concat(letters)
