-- What the scores of a topic's zsets mean. All are whole and below 2^52, which Redis writes and reads exactly, up to the
-- year 9999.
--   d:  due_ms * 4 + priority       so that a promotion need not read the record; `due` has the same
--   r:  priority * 1e15 + due_ms
--   l:  the deadline
--   x:  when it died

-- A score as text. (Lua's own way loses digits from 1e14 on, and is faster.)
local function text(score)
  return score < 1e14 and score .. '' or string.format('%.0f', score)
end
