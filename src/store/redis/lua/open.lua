--@ use clock
-- Has a topic's jobs wait: its circuit is open. What waits is not leased, but for one job at a time when the pause is over.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic   2 for how long, ms   3 how often it was opened in a row   4 why
-- Gives 1 if it was closed, else 0
--
-- Moves nothing.

local topic = ARGV[1]
-- A removal comes first: see moves.
call('ZREM', base .. 'bell', topic)
local known, since, why = call('HGET', base .. 'circuits', topic), now, ARGV[4]
-- No pause: the one that was let through told nothing, and the next one may go.
local again = ARGV[2] == '0'
if known then
  local till, probe, opens, first, reason = string.match(known, '^(%d+) (%d+) (%d+) (%d+) (.*)$')
  -- Several may find out at the same time; and while one was let through, it decides.
  if tonumber(till) > now and tonumber(opens) >= tonumber(ARGV[3]) then return 0 end
  if ARGV[3] == '1' and tonumber(probe) > now and not again then return 0 end
  since = first
  if again then why = reason end
elseif again then
  return 0
end
call('HSET', base .. 'circuits', topic, string.format('%.0f 0 %d %.0f %s', now + ARGV[2], ARGV[3], since, why))
-- No topic is named so: a lease that reads which topics are paused need not look here.
call('SADD', base .. 'paused', '!' .. topic)
return known and 0 or 1
