-- The shard: how its keys are named, and its clock. Every script that moves jobs begins with it. (What is defined here is
-- made anew at each call: a function costs 0.1 to 0.3 µs.)
local call, base = redis.call, KEYS[1]
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- Cut down to whole milliseconds: what due times and deadlines are compared with.
local now = (now_us - now_us % 1000) / 1000
-- The latest moment there is: the end of the year 9999.
local LATEST = 253402300799999

-- The moment that a due time names: '+90000' is a span from the next whole millisecond on, so that nothing is early;
-- '+0' is now; '1767225600000' is a moment.
local function moment(due)
  local ms = tonumber(due)
  if string.byte(due) == 43 then ms = ms == 0 and now or (now_us % 1000 == 0 and now or now + 1) + ms end
  return ms < 0 and 0 or ms > LATEST and LATEST or ms
end
