--@ use clock fence history
-- Erases records that their topics do not keep any more, or erases the oldest records to make room.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 of how many ids at most
--       2 'old': erases the records that their topics do not keep any more; 'room': erases the oldest records of the
--         topic that has the most bytes of records
-- Returns the number of these ids, and the shortest age in ms that a topic with records keeps, or -1
--
-- Changes the state of no job.

local left, shortest = tonumber(ARGV[1]), -1
if ARGV[2] == 'room' then return { erase_of_largest(math.huge, left), shortest } end
for _, topic in ipairs(call('ZRANGE', base .. 'kept', 0, -1)) do
  if left <= 0 then break end
  if topic ~= '' then
    local most, _, _, age = keeping_of(topic)
    local order = base .. 'h:' .. topic
    local surplus = call('ZCARD', order) - most
    if surplus > 0 then left = left - erase_oldest(topic, math.min(surplus, left)) end
    local old = left > 0 and call('ZRANGE', order, '-inf', string.format('%.0f', now - age), 'BYSCORE', 'LIMIT', 0, left)
      or {}
    erase(topic, old)
    left = left - #old
    if most > 0 and (shortest < 0 or age < shortest) then shortest = age end
  end
end
return { tonumber(ARGV[1]) - left, shortest }
