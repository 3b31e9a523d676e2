--@ use clock circuits
-- Opens the circuit of a topic: its jobs wait. No job is leased for the time that ARGV 2 states. After this time, one
-- job at a time is leased.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic   2 for how long, ms; 0: see below   3 how often the circuit was opened in a row   4 why
-- Returns 1 if the circuit was closed before, else 0
--
-- Changes the state of no job.

local topic = ARGV[1]
-- A removal comes first: see moves.
call('ZREM', base .. 'bell', topic)
local till, probe, opens, first, reason = circuit_of(topic)
local since, why = now, ARGV[4]
-- A time of 0 in ARGV 2 means: the job that was let through had no result, so the next job may be let through.
local again = ARGV[2] == '0'
if till then
  -- Several consumers may report the same failure. Only the first report changes the circuit. While a probe is under
  -- way, a report about other jobs changes nothing, because the result of the probe decides.
  if till > now and opens >= tonumber(ARGV[3]) then return 0 end
  if ARGV[3] == '1' and probe > now and not again then return 0 end
  since = first
  if again then why = reason end
elseif again then
  return 0
end
write_circuit(topic, now + ARGV[2], 0, tonumber(ARGV[3]), since, why)
-- The script that leases jobs reads the paused topics anyway. So the open circuits are noted among the paused topics,
-- as '!' and the topic. (No topic has a name with '!'.)
call('SADD', base .. 'paused', '!' .. topic)
return till and 0 or 1
