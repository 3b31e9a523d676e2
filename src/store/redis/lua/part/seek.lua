-- Finds a position in a zset, from which a listing continues. Needs: `call`.

local function before_or_at(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a <= #b
end

-- Returns the rank of the first member after (score, member). The given member may not exist any more. If the given
-- score and member are empty, returns 0: the rank of the first member of all.
local function rank_after(key, score, member)
  if score == '' then return 0 end
  local there = call('ZSCORE', key, member)
  if there and tonumber(there) == tonumber(score) then return call('ZRANK', key, member) + 1 end
  local low = call('ZCOUNT', key, '-inf', '(' .. score)
  local high = low + call('ZCOUNT', key, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if before_or_at(call('ZRANGE', key, middle, middle)[1], member) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end
