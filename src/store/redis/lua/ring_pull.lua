--@ use clock bells
-- Notes that a process waits for jobs of some topics, and wants the rings of these topics in `pbell`.
--
-- KEYS  1 the shard's base
-- ARGV  topics
-- Returns nothing
--
-- Changes the state of no job.

-- A removal comes first: see moves.
call('ZREMRANGEBYSCORE', base .. 'pull', '-inf', now - PULL_RINGS)
for _, topic in ipairs(ARGV) do call('ZADD', base .. 'pull', now, topic) end
-- If no process has asked for rings for a while, no process reads them any more. So both keys expire then.
call('PEXPIRE', base .. 'pull', PULL_RINGS)
call('PEXPIRE', base .. 'pbell', 2 * PULL_RINGS)
return redis.status_reply('OK')
