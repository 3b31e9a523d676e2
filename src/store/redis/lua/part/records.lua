-- The beginning of a record (a value of b:), before the body: rank, plus 4 if there is a limit (1 byte), the stamp in
-- microseconds (7), the job's own limit of attempts (4, if there is one). The rank of a job with a number is 2 here, so
-- that the previous release can read the record.

local function limit_of(record)
  return string.byte(record) >= 4 and struct.unpack('>I4', record, 9) or nil
end

local function stamp_of(record)
  return (struct.unpack('>I7', record, 2))
end
