--@ use shard places numbered leases views seek sizes
-- Lists a page of a topic's jobs in one state: delayed jobs by due time, ready jobs by priority and due time, leased
-- jobs by deadline, dead letters by the time of death.
--
-- KEYS  1 the shard's base
-- ARGV  1 topic   2 state (1 to 4)   3 and 4 where the page before ended; '' and '' for the first
--       5 how many jobs at most   6 how many bytes of big bodies at most
-- Returns an array: where this page ended (two values; '' and '' if it is the last page), the place of each job (an
-- array of two values for each), then for each job the values that part/views.lua describes
--
-- Changes the state of no job.

local topic, state = ARGV[1], tonumber(ARGV[2])
local order = base .. ({ 'd:', 'r:', 'l:', 'x:' })[state] .. topic
local bodies = base .. (state == 4 and 'X:' or 'b:') .. topic
local most = tonumber(ARGV[5])

-- Returns whether the first of the jobs in `found` is a ready job with a number.
local function has_numbers(found)
  return state == 2 and found[2] and tonumber(found[2]) < LEVELS
end

-- Returns a page of the ready jobs with numbers: the jobs that come before the jobs with levels, or the jobs that come
-- after them. (See numbered.) After the last page of this part, the next page begins at `next_part`. A member without a
-- ready job is left out.
local function numbered_page(score, member, is_before)
  local queued, next_part = base .. 'q:' .. topic, is_before and { string.format('%.0f', LEVELS), '', {} } or { '', '', {} }
  local first, edge = rank_after(queued, score, member), call('ZCOUNT', queued, '-inf', '(' .. MIDDLE)
  local stop = is_before and edge or call('ZCARD', queued)
  if not is_before then first = math.max(first, edge) end
  if first >= stop then return next_part end
  local last = math.min(stop, first + most) - 1
  local found, ids, there = call('ZRANGE', queued, first, last, 'WITHSCORES'), {}, {}
  for i = 1, #found / 2 do ids[i] = string.sub(found[2 * i - 1], 16) end
  local n = fitting(topic, bodies, ids, tonumber(ARGV[6]))
  for i = n + 1, #ids do ids[i] = nil end
  local scores = call('ZMSCORE', order, unpack(ids))
  local records, notes = call('HMGET', bodies, unpack(ids)), call('HMGET', base .. 'm:' .. topic, unpack(ids))
  local out = first + n < stop and { found[2 * n], found[2 * n - 1], {} } or next_part
  for i, id in ipairs(ids) do
    local due = struct.unpack('>I6', found[2 * i - 1])
    if scores[i] and tonumber(scores[i]) == due and not there[id] then
      there[id] = true
      local place = out[3]
      place[#place + 1], place[#place + 2] = found[2 * i], found[2 * i - 1]
      view_of(out, id, state, scores[i], records[i], notes[i])
    end
  end
  return out
end

local from = tonumber(ARGV[3])
if state == 2 and from and from < LEVELS then
  return numbered_page(ARGV[3], ARGV[4], from < tonumber(MIDDLE))
end
local first = rank_after(order, ARGV[3], ARGV[4])
local found = call('ZRANGE', order, first, first + most - 1, 'WITHSCORES')
if ARGV[3] == '' and has_numbers(found) then return numbered_page('', '', true) end
-- Returns where the listing continues after the jobs with levels. If the topic has ready jobs with numbers, some of
-- them may come after the levels: see numbered.
local function end_of_levels()
  if state == 2 and from and has_numbers(call('ZRANGE', order, 0, 0, 'WITHSCORES')) then return { MIDDLE, '', {} } end
  return { '', '', {} }
end
if not found[1] then return end_of_levels() end
local members, notes, leases = {}, {}, {}
for i = 1, #found / 2 do members[i] = found[2 * i - 1] end
local n = fitting(topic, bodies, members, tonumber(ARGV[6]))
for i = n + 1, #members do members[i] = nil end
local records = call('HMGET', bodies, unpack(members))
if state < 4 then notes = call('HMGET', base .. 'm:' .. topic, unpack(members)) end
if state == 3 then leases = call('HMGET', base .. 'L:' .. topic, unpack(members)) end
local out
if first + n < call('ZCARD', order) then
  out = { found[2 * n], found[2 * n - 1], {} }
else
  out = end_of_levels()
end
for i, member in ipairs(members) do
  local id = state == 4 and string.sub(member, 1, -5) or member
  out[3][2 * i - 1], out[3][2 * i] = found[2 * i], member
  view_of(out, id, state, found[2 * i], records[i], notes[i], leases[i])
end
return out
