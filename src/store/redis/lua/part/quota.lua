-- The limits of adds. Needs: clock, meter.

-- How many bytes a record has before the body: without an own limit of attempts, and with such a limit. See records.
local HEAD, HEAD_WITH_LIMIT = 8, 12
-- After how many ms a client may try again if the topic has too many jobs or bytes.
local FULL_WAIT = 10000

-- Returns the rates from the words of the limits, and how many jobs each rate allows now.
local function rates_of(words)
  local rates = {}
  for i = 3, #words, 4 do
    local step, burst = tonumber(words[i + 2]), tonumber(words[i + 3])
    local full = step * burst
    -- The same calculation as in TokenBucket::take in src/model/flow.rs.
    local spent = math.min(math.max(tonumber(call('HGET', base .. 'rates', words[i + 1]) or 0), now_us), now_us + full)
    local there = math.floor((now_us + full - spent) / step + 0.001)
    rates[#rates + 1] = { number = tonumber(words[i]), name = words[i + 1], step = step, full = full, spent = spent, there = there }
  end
  return rates
end

-- Chooses the adds of a topic that its limits allow, and counts them. `limits`: the maximum number of pending jobs and
-- of bytes ('-': no limit), then for each rate: the number of the limit, the name under which the rate is counted, the
-- microseconds from one job to the next, and how many jobs may be added at once. `first` is the position of the first
-- job in ARGV, and `step` is the number of arguments of a job. `alike` is the flags if all jobs have the same, or
-- false. The jobs that are allowed are moved to the front of the arguments. Returns how many jobs are allowed, and the
-- answers for the other jobs by position.
local function admit(topic, limits, first, n, step, alike)
  local words = {}
  for word in string.gmatch(limits, '%S+') do words[#words + 1] = word end
  local most, most_bytes, rates = tonumber(words[1]), tonumber(words[2]), rates_of(words)
  local pending, bodies = 0, base .. 'b:' .. topic
  if most then
    for _, prefix in ipairs({ 'd:', 'r:', 'l:' }) do pending = pending + call('ZCARD', base .. prefix .. topic) end
  end
  local before = most_bytes and counted(topic) or 0
  local bytes, taken, refused, sizes = before, 0, {}, {}
  for k = 1, n do
    local at = first + step * (k - 1)
    local id, flags = ARGV[at], alike or ARGV[at + 2]
    local old = sizes[id] or call('HSTRLEN', bodies, id)
    local size = #ARGV[at + 1] + (string.find(flags, '^..%d') and HEAD_WITH_LIMIT or HEAD)
    -- (114 is the letter r: replace.) If the id exists, an add with keep or reject changes nothing.
    local stores, number, wait = old == 0 or string.byte(flags, 2) == 114, nil, FULL_WAIT
    if most and old == 0 and pending >= most then
      number = 1
    elseif most_bytes and stores and size > old and bytes + size - old > most_bytes then
      number = 2
    end
    for _, rate in ipairs(rates) do
      if not number and taken >= rate.there then
        number = rate.number
        wait = math.max(1, math.ceil((rate.spent + (taken + 1) * rate.step - now_us - rate.full) / 1000))
      end
    end
    if number then
      refused[k] = struct.pack('>BBI6', 113, number, wait)
    else
      if stores then
        if old == 0 then pending = pending + 1 end
        bytes, sizes[id] = bytes + size - old, size
      end
      for x = 0, step - 1 do ARGV[first + step * taken + x] = ARGV[at + x] end
      taken = taken + 1
    end
  end
  meter(topic, bytes - before)
  for _, rate in ipairs(rates) do
    if taken > 0 then call('HSET', base .. 'rates', rate.name, string.format('%.2f', rate.spent + taken * rate.step)) end
  end
  return taken, refused
end

-- Puts the answers for the refused jobs between the answers for the other jobs. Returns all `n` answers.
local function woven(answers, refused, n)
  local all, at = {}, 1
  for k = 1, n do
    all[k] = refused[k]
    if not all[k] then
      all[k] = string.sub(answers, at, at + 7)
      at = at + 8
    end
  end
  return table.concat(all)
end
