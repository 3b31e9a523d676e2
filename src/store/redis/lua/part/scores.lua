-- What the scores of a topic's zsets mean. Both fit into 52 bits up to the year 9999, and Redis writes such numbers as
-- whole ones.
--   d:  due_ms * 4 + priority       so that a promotion need not read the record
--   r:  priority * 1e15 + due_ms
--   l:  the deadline, x: when it died

-- A score as text: Lua's own conversion loses digits from 1e14 on.
local function text(score)
  return score < 1e14 and score .. '' or string.format('%.0f', score)
end

local function from_delayed(score)
  local rank = score % 4
  return (score - rank) / 4, rank
end

local function from_ready(score)
  local due = score % 1e15
  return due, (score - due) / 1e15
end
