--@ use clock bells
-- Notes that somebody waits for jobs of some topics, and wants their rings in `pbell`.
--
-- KEYS  1 the shard's base
-- ARGV  topics
-- Returns nothing
--
-- Moves nothing.

-- A removal comes first: see moves.
call('ZREMRANGEBYSCORE', base .. 'pull', '-inf', now - PULL_RINGS)
for _, topic in ipairs(ARGV) do call('ZADD', base .. 'pull', now, topic) end
-- Nobody reads the rings any more when nobody has asked for them for a while.
call('PEXPIRE', base .. 'pull', PULL_RINGS)
call('PEXPIRE', base .. 'pbell', 2 * PULL_RINGS)
return redis.status_reply('OK')
