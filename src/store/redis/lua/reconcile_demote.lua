--@ use clock bells scores records leases moves copies
-- Notes that the home of displaced jobs no longer has older copies of them: they only remain to be moved. Those of which the
-- home has a newer copy go.
--
-- KEYS  1 the base of the shard that holds them
-- ARGV  1 the home node, then for each entry: topic, id, stamp, and the letter that reconcile_yield gave
-- Gives how many entries are noted
--
-- Moves a job: delayed, ready, leased -> nothing (what settles its lease is stale)

local away, stray = base .. 'away:' .. ARGV[1], base .. 'stray:' .. ARGV[1]
local noted = 0
for i = 2, #ARGV, 4 do
  local topic, id, stamp, letter = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local name = topic .. '\0' .. id
  if call('HGET', away, name) == stamp then
    call('HDEL', away, name)
    local record = call('HGET', base .. 'b:' .. topic, id)
    if not record or string.format('%.0f', stamp_of(record)) ~= stamp then
      -- It has ended here.
    elseif letter == 'y' then
      call('HSET', stray, name, stamp)
      noted = noted + 1
    else
      let_go(topic, id)
    end
  end
end
return noted
