-- The bells. `bell` holds the topics that have leasable work of which nobody was told, each once; who waits takes one
-- with BZPOPMIN. `tbell` holds at most one element, for the timers. Needs: clock.

-- Rings for a topic that has ready jobs. Each that has some is in `leasable`, and each in `leasable` is in `due`. (One that has
-- none may be in `bell` alone: whoever was told of it and does not listen any more puts it back.)
local function ring(topic)
  call('ZADD', base .. 'bell', 'NX', now, topic)
  if call('SADD', base .. 'leasable', topic) == 1 then call('ZADD', base .. 'due', 'NX', 'inf', topic) end
end

-- Notes in `due` or `end` that a topic has something at `score`; rings the timers when that is before all else there.
local function lower(index, topic, score)
  if call('ZADD', base .. index, 'LT', 'CH', score, topic) == 1
    and call('ZRANGE', base .. index, 0, 0)[1] == topic then
    call('ZADD', base .. 'tbell', 0, 'timer')
  end
end
