-- The bells. `bell` holds topics that have ready jobs, until a consumer is notified of these jobs. Each topic is in
-- `bell` at most once. A waiting consumer takes one topic with BZPOPMIN. `pbell` is a stream of the topics that clients
-- wait for. Each process that has waiting clients reads this stream with XREAD. `pull` has these topics. The score of a
-- topic is the time when a process last asked for the rings of this topic. `tbell` holds at most one element, for the
-- timers. Needs: clock.

-- How long the rings of a topic are written to `pbell` after a process has asked for them, in ms. The same as
-- PULL_RINGS in src/store/lib.rs.
local PULL_RINGS = 60000

-- Rings for a topic that has ready jobs. Each topic with ready jobs is in `leasable`, and each topic in `leasable` is
-- in `due`. (But `bell` may also hold a topic without ready jobs: a listener that gets a ring and does not listen any
-- more puts the ring back.)
local function ring(topic)
  call('ZADD', base .. 'bell', 'NX', now, topic)
  if call('SADD', base .. 'leasable', topic) == 1 then call('ZADD', base .. 'due', 'NX', 'inf', topic) end
  local asked = call('ZSCORE', base .. 'pull', topic)
  if asked and tonumber(asked) > now - PULL_RINGS then
    call('XADD', base .. 'pbell', 'MAXLEN', '~', 1000, '*', 'topic', topic)
  end
end

-- Lowers the score of a topic in `due` or `end`. For `due`, `score` is the score of a job in `d:`. For `end`, `score`
-- is the deadline of a lease. Rings the timers if the score has changed and the topic is now the first entry.
local function lower(index, topic, score)
  if call('ZADD', base .. index, 'LT', 'CH', score, topic) == 1
    and call('ZRANGE', base .. index, 0, 0)[1] == topic then
    call('ZADD', base .. 'tbell', 0, 'timer')
  end
end
