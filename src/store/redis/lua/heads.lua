--@ use shard places leases views seek sizes
-- Lists a page of a topic's jobs in one state without their bodies, in the order of the zset of this state, or in the
-- opposite order. (The script `list` returns ready jobs with numbers as priorities in another order.)
--
-- KEYS  1 the shard's base
-- ARGV  1 topic   2 state (1 to 4)   3 and 4 the score and the member behind which the page begins; '' and '' for the
--       first page   5 'forward' or 'backward'   6 how many jobs at most   7 how many bytes of big bodies at most
-- Returns an array: 1 if there are more, else 0; then for each job five values: its member and score in the zset of the
-- state, its due time in ms, its stamp in us, its log
--
-- Changes the state of no job.

local topic, state, back = ARGV[1], tonumber(ARGV[2]), ARGV[5] == 'backward'
local order = base .. ({ 'd:', 'r:', 'l:', 'x:' })[state] .. topic
local bodies = base .. (state == 4 and 'X:' or 'b:') .. topic
local all, most = call('ZCARD', order), tonumber(ARGV[6])
local found
if back then
  -- The page has the ranks from `last` downwards.
  local last = all - 1
  if ARGV[3] ~= '' then
    last = rank_after(order, ARGV[3], ARGV[4]) - 1
    local there = call('ZSCORE', order, ARGV[4])
    if there and tonumber(there) == tonumber(ARGV[3]) then last = last - 1 end
  end
  if last < 0 then return { 0 } end
  found = call('ZRANGE', order, all - 1 - last, all - 1 - last + most - 1, 'REV', 'WITHSCORES')
  all = last + 1
else
  local first = rank_after(order, ARGV[3], ARGV[4])
  found = call('ZRANGE', order, first, first + most - 1, 'WITHSCORES')
  all = all - first
end
if not found[1] then return { 0 } end
local members, notes, leases = {}, {}, {}
for i = 1, #found / 2 do members[i] = found[2 * i - 1] end
local n = fitting(topic, bodies, members, tonumber(ARGV[7]))
for i = n + 1, #members do members[i] = nil end
local records = call('HMGET', bodies, unpack(members))
if state < 4 then notes = call('HMGET', base .. 'm:' .. topic, unpack(members)) end
if state == 3 then leases = call('HMGET', base .. 'L:' .. topic, unpack(members)) end
local out = { n < all and 1 or 0 }
for i, member in ipairs(members) do
  local score = tonumber(found[2 * i])
  local record, log, due = records[i], notes[i] and string.sub(notes[i], 6) or '', nil
  if state == 1 then
    due = from_delayed(score)
  elseif state == 2 then
    due = from_ready(score)
  elseif state == 3 then
    due = lease_of(leases[i]).due
  else
    local letter = parse_letter(record)
    due, log, record = letter.due, letter.log, letter.record
  end
  local at = #out
  out[at + 1], out[at + 2], out[at + 3], out[at + 4], out[at + 5] =
    member, found[2 * i], due, struct.unpack('>I7', record, 2), log
end
return out
