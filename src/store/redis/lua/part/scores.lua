-- The meaning of the scores in a topic's zsets. All are whole numbers below 2^52 up to the year 9999, which Redis
-- writes and reads exactly.
--   d:  due_ms * 4 + rank           so that a promotion need not read the record; `due` has the same scores
--   r:  rank * 1e15 + due_ms
--   l:  the deadline
--   x:  when the job died
-- The rank is 1 (high), 2 (normal) or 3 (low), or 0 for a job whose priority is a number: see numbered.

-- Returns a score as text. (Lua's own conversion loses digits from 1e14 on, but is faster.)
local function text(score)
  return score < 1e14 and score .. '' or string.format('%.0f', score)
end
