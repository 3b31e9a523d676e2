-- The bells. `bell` holds the topics that have ready jobs of which no consumer was notified yet. Each topic is in it at
-- most once. A waiting consumer takes one topic with BZPOPMIN. `pbell` is a stream of the topics that clients wait for.
-- Each process that has waiting clients reads this stream with XREAD. `pull` has these topics, each with the time when
-- somebody last asked for its rings. `tbell` holds at most one element, for the timers. Needs: clock.

-- For how long the rings of a topic are wanted after somebody has asked for them, ms. The same as PULL_RINGS in
-- src/store/lib.rs.
local PULL_RINGS = 60000

-- Rings for a topic that has ready jobs. Each topic with ready jobs is in `leasable`, and each topic in `leasable` is
-- in `due`. (But `bell` may hold a topic without ready jobs: if a listener that got a ring does not listen any more, it
-- puts the ring back.)
local function ring(topic)
  call('ZADD', base .. 'bell', 'NX', now, topic)
  if call('SADD', base .. 'leasable', topic) == 1 then call('ZADD', base .. 'due', 'NX', 'inf', topic) end
  local asked = call('ZSCORE', base .. 'pull', topic)
  if asked and tonumber(asked) > now - PULL_RINGS then
    call('XADD', base .. 'pbell', 'MAXLEN', '~', 1000, '*', 'topic', topic)
  end
end

-- Notes in `due` or `end` that a job of a topic is due, or a lease ends, at the time `score`. Rings the timers if the
-- topic is now the first entry.
local function lower(index, topic, score)
  if call('ZADD', base .. index, 'LT', 'CH', score, topic) == 1
    and call('ZRANGE', base .. index, 0, 0)[1] == topic then
    call('ZADD', base .. 'tbell', 0, 'timer')
  end
end
