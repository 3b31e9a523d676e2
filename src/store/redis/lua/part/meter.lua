-- The bytes of a topic's jobs: of all its records (b:) and dead letters (X:). The hash `bytes` has a field for each
-- topic that is counted. For other topics, nothing is counted, because the count would slow down each transition. The
-- key `counting` is '1' if the hash exists, and '0' if not. Needs: fence.

local function meter(topic, bytes)
  if bytes ~= 0 and counting and call('HEXISTS', base .. 'bytes', topic) == 1 then
    call('HINCRBY', base .. 'bytes', topic, bytes)
  end
end

-- Returns how many bytes these fields of b: or X: have together. Returns 0 for a topic that is not counted.
local function bytes_of(prefix, topic, names)
  if not counting or call('HEXISTS', base .. 'bytes', topic) == 0 then return 0 end
  local key, bytes = base .. prefix .. topic, 0
  for _, name in ipairs(names) do bytes = bytes + call('HSTRLEN', key, name) end
  return bytes
end

-- Removes fields of b: or X:. Returns how many of them existed. (The removal comes before the count: see moves.)
local function remove(prefix, topic, names)
  local bytes = bytes_of(prefix, topic, names)
  local n = call('HDEL', base .. prefix .. topic, unpack(names))
  meter(topic, -bytes)
  return n
end

-- Returns how many bytes the jobs of a topic have. From now on these bytes are counted. If the topic has jobs that were
-- never counted, the first value is the server's estimate. The value becomes exact when this function is called while
-- the topic has no jobs.
local function counted(topic)
  if not counting then
    counting = true
    call('SET', base .. 'counting', '1')
  end
  local bytes, live, dead = call('HGET', base .. 'bytes', topic), base .. 'b:' .. topic, base .. 'X:' .. topic
  if call('EXISTS', live, dead) == 0 then
    if bytes ~= '0' then call('HSET', base .. 'bytes', topic, '0') end
    return 0
  end
  if not bytes then
    bytes = (call('MEMORY', 'USAGE', live, 'SAMPLES', '1000') or 0)
      + (call('MEMORY', 'USAGE', dead, 'SAMPLES', '1000') or 0)
    call('HSET', base .. 'bytes', topic, bytes)
  end
  return math.max(0, tonumber(bytes))
end
