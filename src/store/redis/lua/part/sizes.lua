-- Limits the bodies that a script reads. A topic that ever had a body of more than 64 KiB is in `big`. For other topics
-- it is enough to limit the number of jobs. Needs: clock.

-- Returns how many of these fields of a hash, from the first one on, have at most `bytes` bytes together. The first
-- field is always included.
local function fitting(topic, key, fields, bytes)
  if call('SISMEMBER', base .. 'big', topic) == 0 then return #fields end
  for i, field in ipairs(fields) do
    bytes = bytes - call('HSTRLEN', key, field)
    if bytes < 0 and i > 1 then return i - 1 end
  end
  return #fields
end
