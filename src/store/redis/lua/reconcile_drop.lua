--@ use clock bells scores records leases moves copies
-- Lets go of jobs that their home has taken over, and of what was remembered of them. Third step of four: see
-- reconcile_take.
--
-- KEYS  1 the base of the shard that held them
-- ARGV  1 the home node, then for each entry: topic, id, stamp, token, as they were given; or 'any' for a token: the job
--         goes in whichever state it is, if the stamp is its own
-- Gives one letter an entry, in their order: g gone; s it is leased, or something has changed since it was
-- taken, and it stays for the next time
--
-- Moves a job: leased, as one that is hidden -> nothing; replaced meanwhile -> delayed, ready. With 'any': delayed, ready,
-- leased -> nothing (what settles its lease is stale)

local entries = { base .. 'away:' .. ARGV[1], base .. 'stray:' .. ARGV[1] }
local letters = {}
for i = 2, #ARGV, 4 do
  local topic, id, stamp, token = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local name = topic .. '\0' .. id
  local settled = false
  if token == '' or token == 'any' then
    local record = call('HGET', base .. 'b:' .. topic, id)
    settled = not record or string.format('%.0f', stamp_of(record)) ~= stamp
    if token == 'any' and not settled then
      let_go(topic, id)
      settled = true
    end
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
  letters[#letters + 1] = settled and 'g' or 's'
  for _, key in ipairs(settled and entries or {}) do
    if call('HGET', key, name) == stamp then call('HDEL', key, name) end
  end
end
return table.concat(letters)
