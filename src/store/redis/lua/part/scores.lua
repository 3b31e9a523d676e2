-- The meaning of the scores in a topic's zsets. All scores are whole numbers. For times up to the year 9999, they are
-- below 2^52. Redis writes and reads such numbers exactly.
--   d:  due_ms * 4 + rank           so a promotion finds the rank in the score, and does not read the record
--   r:  rank * 1e15 + due_ms
--   l:  the deadline
--   x:  when the job died
-- The members of `due` are topics. The score of a topic there is the lowest score in its `d:`, or inf if it has no
-- delayed job. If the job with this score is removed, the score stays too low until the next promotion of the topic.
-- The rank is 1 (high), 2 (normal) or 3 (low), or 0 for a job with a number as priority: see numbered.

-- Returns a score as text. (Lua's own conversion is faster, but loses digits from 1e14 on.)
local function text(score)
  return score < 1e14 and score .. '' or string.format('%.0f', score)
end
