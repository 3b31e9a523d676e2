--@ use clock
-- Returns how much waits in the outbox.
--
-- KEYS  1 the shard's base
-- Returns how many entries there are, and how many ms ago the oldest was written (0: there is none)
--
-- Changes the state of no job.

local first = call('ZRANGE', base .. 'out', 0, 0, 'WITHSCORES')[2]
return { call('ZCARD', base .. 'out'), first and math.max(0, math.floor((now_us - tonumber(first)) / 1000)) or 0 }
