-- The shard: the names of its keys, and its clock. A script that needs the time begins with this part. The other
-- scripts begin with the part `shard`. (The functions here are defined anew at each call. This costs 0.1 to 0.3 µs for
-- each function.)
local call, base = redis.call, KEYS[1]
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- The time cut down to whole milliseconds. Due times and deadlines are compared with this time.
local now = (now_us - now_us % 1000) / 1000
-- The latest time that dq can store: the end of the year 9999.
local LATEST = 253402300799999

-- Returns the moment of a due time. '+90000' is a span that begins at the next whole millisecond, so that no job is
-- early. '+0' is now. '1767225600000' is a moment.
local function moment(due)
  local ms = tonumber(due)
  if string.byte(due) == 43 then ms = ms == 0 and now or (now_us % 1000 == 0 and now or now + 1) + ms end
  return ms < 0 and 0 or ms > LATEST and LATEST or ms
end
