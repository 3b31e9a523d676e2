-- Jobs with a number as priority, instead of a level. Their rank is 0 in all scores. The number is in the notes: the
-- line of headers begins with the number, the stamp that the job had when it got the number, and the place of the job
-- in the call that set the number. `q:<topic>` has the order of the ready jobs with numbers: the score is the number,
-- and the member is the due time in ms (6 bytes), stamp (7), place (2), id. docs/internals/PRIORITY.md has the rules.
-- Needs: `call` and `base`.

-- The lowest score in `r:<topic>` (the ready jobs of a topic) of a job with a level as priority. Jobs with a number
-- have lower scores.
local LEVELS = 1e15
-- Jobs with numbers below MIDDLE come before the jobs with levels. Jobs with the number MIDDLE or a higher number come
-- after the jobs with levels. If the number of a job is not known, MIDDLE is used as its number.
local MIDDLE = '2147483648'

-- Returns number, stamp and place from the notes of a job as text, or nothing.
local function number_of(noted)
  return string.match(noted or '', '^h{":priority":"(%d+)%.(%d+)%.(%d+)"', 6)
end

-- Returns a log with another number in its line of headers, or without a number if `number` is nil. The job keeps its
-- place in the order of arrival. `stamp` is when the job was added.
local function with_number(log, number, stamp)
  local members = string.match(log, '^h{([^\n]*)}\n')
  local lines = members and string.sub(log, #members + 5) or log
  local since, place, others = string.match(members or '', '^":priority":"%d+%.(%d+)%.(%d+)",?(.*)$')
  others = others or members or ''
  if number then
    local own = string.format('":priority":"%s.%s.%s"', number, since or string.format('%.0f', stamp), place or '0')
    others = others == '' and own or own .. ',' .. others
  end
  return others == '' and lines or 'h{' .. others .. '}\n' .. lines
end

-- Returns the members that ready jobs have in `q:<topic>`, and the numbers of these jobs. `jobs`: id and due time in
-- turn.
local function members_of(topic, jobs)
  local ids, members, numbers = {}, {}, {}
  for i = 1, #jobs, 2 do ids[(i + 1) / 2] = jobs[i] end
  for i, noted in ipairs(call('HMGET', base .. 'm:' .. topic, unpack(ids))) do
    local number, stamp, place = number_of(noted)
    members[i] = struct.pack('>I6I7I2', jobs[2 * i], tonumber(stamp or 0), tonumber(place or 0)) .. ids[i]
    numbers[i] = number or MIDDLE
  end
  return members, numbers
end

-- Adds ready jobs to the order.
local function queue(topic, jobs)
  local members, numbers = members_of(topic, jobs)
  local words = {}
  for i, member in ipairs(members) do
    words[2 * i - 1], words[2 * i] = numbers[i], member
  end
  call('ZADD', base .. 'q:' .. topic, unpack(words))
end

-- Removes ready jobs from the order. Call this function before the notes of these jobs change, because it makes the
-- members from the notes.
local function unqueue(topic, jobs)
  local members = members_of(topic, jobs)
  call('ZREM', base .. 'q:' .. topic, unpack(members))
end
