--@ use clock fence batch bells scores places meter numbered moves leases history unsettled latest_letters late_letters
--@ later latest_letters late_letters
-- Removes jobs in any state. If an id has no live job, removes its dead letters. (A batch of the spool also removes
-- live jobs, but of the dead letters it removes only the late ones: see late_letters. The reason: a deletion in the
-- spool has replaced an add of the same host. So the deletion is for the job of that add, and not for older dead
-- letters of the id.)
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence   3 for a batch only: see batch
-- ARGV  1 why the jobs are removed, for their records; '' for no reason. Then for each topic: topic, n, and n ids
--       at the end, for a batch only: see late_letters
-- Returns one digit for each id, in their order: 1 it was there, 0 it was not there, 2 there were so many dead letters
-- that some are left
--
-- Moves a job: delayed, ready, leased -> nothing. If there is no job of that id: dead -> nothing

-- The maximum number of older dead letters that one call removes, for all ids together.
local left = 2048

local function take_latest_letter(topic, id)
  local letter_hash, letters, latest = base .. 'X:' .. topic, base .. 'x:' .. topic, id .. '\0\0\0\0'
  if left <= 0 then return call('HEXISTS', letter_hash, latest) * 2 end
  local letter = call('HGET', letter_hash, latest)
  if not letter then return 0 end
  local older = struct.unpack('>I4', letter, 7)
  while older > 0 and left > 0 do
    local names = {}
    for number = older, math.max(1, older - 255), -1 do names[#names + 1] = id .. struct.pack('>I4', number) end
    call('ZREM', letters, unpack(names))
    older, left = older - #names, left - #names
    -- The oldest letters have the lowest numbers, and other scripts remove the oldest letters first. So if a letter is
    -- missing, no letter has a lower number.
    if remove('X:', topic, names) < #names then older = 0 end
  end
  if older > 0 then
    call('HSET', letter_hash, latest, string.sub(letter, 1, 6) .. struct.pack('>I4', older) .. string.sub(letter, 11))
    return 2
  end
  call('ZREM', letters, latest)
  remove('X:', topic, { latest })
  return 1
end

if KEYS[3] then
  define_others()
  remove_late_letters()
end
local digits, sum = {}, 0
local i = 2
while ARGV[i] do
  local topic, n = ARGV[i], tonumber(ARGV[i + 1])
  local first = i + 1
  local these = {}
  for k = 1, n do these[k] = k end
  -- If an id occurs twice, its second occurrence removes its dead letters.
  while these[1] do
    local ids, ks, seen, later = {}, {}, {}, {}
    for _, k in ipairs(these) do
      local id = ARGV[first + k]
      if seen[id] then
        later[#later + 1] = k
      else
        seen[id] = true
        ids[#ids + 1], ks[#ks + 1] = id, k
      end
    end
    local m = moves(topic)
    local delayed = call('ZMSCORE', base .. 'd:' .. topic, unpack(ids))
    local ready = call('ZMSCORE', base .. 'r:' .. topic, unpack(ids))
    local leases = call('HMGET', base .. 'L:' .. topic, unpack(ids))
    for x, id in ipairs(ids) do
      local digit = 1
      if delayed[x] then
        add(m, 'from_delayed', id)
      elseif ready[x] then
        leave_ready(m, id, ready[x])
      elseif leases[x] then
        unlease(m, id, lease_of(leases[x]))
      else
        digit = KEYS[3] and 0 or take_latest_letter(topic, id)
      end
      if delayed[x] or ready[x] or leases[x] then
        ends_unsettled(m, id, DELETED, delayed[x], ready[x], leases[x], nil, ARGV[1])
        add(m, 'gone', id)
        add(m, 'forgotten', id)
      end
      digits[sum + ks[x]] = digit
    end
    make(m)
    keep(m)
    these = later
  end
  sum = sum + n
  i = first + n + 1
end
return table.concat(digits)
