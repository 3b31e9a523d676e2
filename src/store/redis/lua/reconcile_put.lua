--@ use clock bells scores records leases moves copies
-- Takes over jobs that another node holds. Second step of four: see reconcile_take.
--
-- KEYS  1 the base of the jobs' home shard
-- ARGV  1 the shard that held them   2 that shard's clock when they were taken, ms   3 how old that may be, ms
--       then for each entry: topic, id, stamp, record, due, notes, as they were given
-- Gives '' when it is too late, and nothing was done. Else one letter an entry, in their order: p put; o this shard's own
-- copy is as new or newer, and stays; l put before; e there was no job to put
--
-- Moves a job: nothing -> delayed, ready. An own copy that is older: delayed, ready, leased -> nothing (what settles its
-- lease is stale).

local taken, put = tonumber(ARGV[2]), base .. 'put:' .. ARGV[1]
-- Who is that late may have been given up, and the jobs taken again by somebody else.
if math.abs(now - taken) > tonumber(ARGV[3]) then return '' end

local letters = {}

for i = 4, #ARGV, 6 do
  local topic, id, stamp, record = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local name = topic .. '\0' .. id
  local before = tonumber(call('HGET', put, name) or -1)
  local own = call('HGET', base .. 'b:' .. topic, id)
  local letter = record == '' and 'e' or 'p'
  if own and stamp_of(own) >= stamp then
    letter = 'o'
  elseif before >= stamp then
    letter = 'l'
  elseif own then
    let_go(topic, id)
  end
  if letter == 'p' then
    local m = moves(topic)
    add(m, 'records', id, record)
    if ARGV[i + 5] ~= '' then add(m, 'notes', id, ARGV[i + 5]) end
    place(m, id, tonumber(ARGV[i + 4]), string.byte(record) % 4)
    if #record > 65536 then call('SADD', base .. 'big', topic) end
    make(m)
  end
  -- Whatever became of it here: it is not to come a second time.
  if record ~= '' and before < stamp then call('HSET', put, name, string.format('%.0f', stamp)) end
  letters[#letters + 1] = letter
end
return table.concat(letters)
