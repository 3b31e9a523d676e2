--@ use clock fence bells scores places leases meter numbered moves views seek latest_letters dead_letters
-- Makes dead letters ready, or delayed, with their attempts reset. If an id has a live job, its letters stay. Of
-- several letters of one id, only one is redriven.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  1 topic   2 how many jobs at most   3 after how many bytes of records the call redrives no further job
--       4 when the first one is due, in µs from now   5 how much later each next one is due, in µs
--       then one of these:
--         'all', where the previous call ended (two values; '' and '' at first), and how many letters to look at
--         'ids' and the ids: the latest dead letter of each
--         'letters', and for each letter its id and when it died in ms
-- Returns how many it redrove, then two values. For 'all': where it ended, or '' and '' if it has seen all. For 'ids'
-- and 'letters': how many of the named letters it has seen, and '+' if the call must be repeated for the next letter,
-- else ''
--
-- Moves a job: dead -> ready, delayed

local topic, left, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local letter_hash, letters = base .. 'X:' .. topic, base .. 'x:' .. topic
local after, every = tonumber(ARGV[4]), tonumber(ARGV[5])
local m, revived, jobs = moves(topic), {}, 0

-- Makes one dead letter ready, or delayed. Returns false if this was not possible yet, because many other letters of
-- its id must be moved first.
local function revive(member, id)
  local letter = parse_letter(call('HGET', letter_hash, member))
  if take_out(letter_hash, letters, id, { member }) == 0 then return false end
  add(m, 'records', id, letter.record)
  local noted = struct.pack('>I4B', 0, 0) .. letter.log
  if letter.log ~= '' then add(m, 'notes', id, noted) end
  local rank = number_of(noted) and 0 or string.byte(letter.record) % 4
  place(m, id, now + math.ceil((after + jobs * every) / 1000), rank)
  revived[id] = true
  jobs, left, bytes = jobs + 1, left - 1, bytes - #letter.record
  return true
end

local function live(id)
  return revived[id] or call('HEXISTS', base .. 'b:' .. topic, id) == 1
end

local score, member = '', ''
if ARGV[6] == 'all' then
  local first = rank_after(letters, ARGV[7], ARGV[8])
  local found = call('ZRANGE', letters, first, first + tonumber(ARGV[9]) - 1, 'WITHSCORES')
  local more = first + #found / 2 < call('ZCARD', letters)
  for i = 1, #found, 2 do
    if left == 0 or bytes <= 0 then
      more = true
      break
    end
    member, score = found[i], found[i + 1]
    local id = string.sub(member, 1, -5)
    if not live(id) then revive(member, id) end
  end
  if not more then score, member = '', '' end
else
  score = 0
  local by_letter = ARGV[6] == 'letters'
  for i = 7, #ARGV, by_letter and 2 or 1 do
    if left == 0 or bytes <= 0 then break end
    if room <= 0 then
      member = '+'
      break
    end
    local id, name = ARGV[i], nil
    if by_letter then
      name = letter_of(letters, id, ARGV[i + 1])
    elseif call('HEXISTS', letter_hash, id .. ZERO) == 1 then
      name = id .. ZERO
    end
    if name and not live(id) and not revive(name, id) then
      member = '+'
      break
    end
    score = score + 1
  end
end
make(m)
return { jobs, score, member }
