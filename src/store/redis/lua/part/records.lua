-- The beginning of a record (a value of b:), before the body. Byte 1: the rank, plus 4 if the job has its own limit of
-- attempts. Then 7 bytes: the stamp in microseconds. Then, only if the job has its own limit, 4 bytes: this limit. If
-- the priority of a job is a number and not a level, the rank is 2 here (and 0 in the scores). So the previous release
-- can read the record.

local function limit_of(record)
  return string.byte(record) >= 4 and struct.unpack('>I4', record, 9) or nil
end

local function stamp_of(record)
  return (struct.unpack('>I7', record, 2))
end
