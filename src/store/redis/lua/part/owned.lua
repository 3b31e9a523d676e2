-- `o:<owner>` holds the names of the jobs that an owner has leased. A name is the topic, a zero byte, and the id of the
-- job.

-- Groups the ids in these names by topic.
local function by_topic(names)
  local topics = {}
  for _, name in ipairs(names) do
    -- A topic has no zero byte, but an id may have one.
    local cut = string.find(name, '\0', 1, true)
    local topic = string.sub(name, 1, cut - 1)
    local ids = topics[topic] or {}
    topics[topic] = ids
    ids[#ids + 1] = string.sub(name, cut + 1)
  end
  return topics
end
