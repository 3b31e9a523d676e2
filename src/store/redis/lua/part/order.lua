-- Chooses ready jobs of a topic that has jobs with numbers as priorities: see numbered. Needs: scores, numbered.

-- How many times `choose` reads a part of the order, and how many entries `mend` looks at.
local LOOKS, MENDED = 16, 16

-- Adds to `chosen` the jobs with numbers in the range from `from` to `to`, in their order, until `chosen` has `n` jobs.
-- Removes from q: members that match no entry of r:, and members of jobs that are chosen already.
local function choose(chosen, topic, n, from, to)
  local order, ready, kept = base .. 'q:' .. topic, base .. 'r:' .. topic, 0
  for _ = 1, LOOKS do
    local some = #chosen < n and call('ZRANGE', order, from, to, 'BYSCORE', 'LIMIT', kept, n - #chosen)
    if not some or not some[1] then return end
    local ids, surplus = {}, {}
    for i, member in ipairs(some) do ids[i] = string.sub(member, 16) end
    for i, score in ipairs(call('ZMSCORE', ready, unpack(ids))) do
      if score and tonumber(score) == struct.unpack('>I6', some[i]) and not chosen[ids[i]] then
        chosen[ids[i]], chosen[#chosen + 1] = true, { ids[i], score, some[i] }
        kept = kept + 1
      else
        surplus[#surplus + 1] = some[i]
      end
    end
    if surplus[1] then call('ZREM', order, unpack(surplus)) end
  end
end

-- Adds entries of r: to `chosen` until `chosen` has `n` jobs.
local function choose_entries(chosen, n, found)
  for i = 1, #found, 2 do
    if #chosen >= n then return end
    if not chosen[found[i]] then
      chosen[found[i]], chosen[#chosen + 1] = true, { found[i], found[i + 1] }
    end
  end
end

-- Returns the first `n` ready jobs of a topic that has jobs with numbers, in the form of `found`. Also returns the
-- members of q: for these jobs ('' for a job that has no member). `found`: the first entries of r:.
local function in_order(topic, n, found)
  local chosen, all, members = {}, {}, {}
  choose(chosen, topic, n, '-inf', '(' .. MIDDLE)
  if #chosen < n then
    local first = string.format('%.0f', LEVELS)
    local levels = call('ZRANGE', base .. 'r:' .. topic, first, '+inf', 'BYSCORE', 'LIMIT', 0, n, 'WITHSCORES')
    choose_entries(chosen, n, levels)
  end
  choose(chosen, topic, n, MIDDLE, '+inf')
  choose_entries(chosen, n, found)
  for i, one in ipairs(chosen) do
    all[2 * i - 1], all[2 * i], members[i] = one[1], one[2], one[3] or ''
  end
  return all, members
end

-- Looks at some random ready jobs, and adds members to q: for those with numbers. The previous release does not know
-- q:, and puts such jobs only into r:. If no ready job has a number, removes q:.
local function mend(topic)
  local ready, jobs = base .. 'r:' .. topic, {}
  local some = call('ZRANDMEMBER', ready, MENDED, 'WITHSCORES')
  for i = 1, #some, 2 do
    local score = tonumber(some[i + 1])
    if score < LEVELS then jobs[#jobs + 1], jobs[#jobs + 2] = some[i], score end
  end
  if jobs[1] then
    queue(topic, jobs)
  elseif tonumber(call('ZRANGE', ready, 0, 0, 'WITHSCORES')[2] or LEVELS) >= LEVELS then
    call('UNLINK', base .. 'q:' .. topic)
  end
end
