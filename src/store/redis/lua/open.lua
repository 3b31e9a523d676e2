--@ use clock circuits
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
local till, probe, opens, first, reason = circuit_of(topic)
local since, why = now, ARGV[4]
-- No pause: the one that was let through told nothing, and the next one may go.
local again = ARGV[2] == '0'
if till then
  -- Several may find out at the same time; and while one was let through, it decides.
  if till > now and opens >= tonumber(ARGV[3]) then return 0 end
  if ARGV[3] == '1' and probe > now and not again then return 0 end
  since = first
  if again then why = reason end
elseif again then
  return 0
end
write_circuit(topic, now + ARGV[2], 0, tonumber(ARGV[3]), since, why)
-- No topic is named so: a lease that reads which topics are paused need not look here.
call('SADD', base .. 'paused', '!' .. topic)
return till and 0 or 1
