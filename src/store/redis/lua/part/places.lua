-- Splits scores into due time and rank. See scores.

local function from_delayed(score)
  local rank = score % 4
  return (score - rank) / 4, rank
end

local function from_ready(score)
  local due = score % 1e15
  return due, (score - due) / 1e15
end
