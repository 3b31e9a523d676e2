-- Circuits that are not closed. `circuits` holds for each topic: until when no job is let through, until when dq waits
-- for the job that was let through as a probe, how often the circuit was opened, since when it is open, and why.
-- `circuits_at` holds for each topic when its field in `circuits` was last written. If the clock now shows an earlier
-- time, the clock was set back meanwhile, and the jobs would wait for too long. (The previous release does not write
-- `circuits_at`. If the field is missing, the time when the circuit was opened is used instead.) Needs: clock.

local function write_circuit(topic, till, probe, opens, since, why)
  -- A removal comes first: see moves.
  call('HDEL', base .. 'circuits_at', topic)
  call('HSET', base .. 'circuits', topic, string.format('%.0f %.0f %d %.0f %s', till, probe, opens, since, why))
  call('HSET', base .. 'circuits_at', topic, string.format('%.0f', now))
end

-- Returns what is stored of a topic's circuit, or nothing if the circuit is closed. If the clock was set back, sets the
-- times of the circuit back too.
local function circuit_of(topic)
  local known = call('HGET', base .. 'circuits', topic)
  if not known then return nil end
  local till, probe, opens, since, why = string.match(known, '^(%d+) (%d+) (%d+) (%d+) (.*)$')
  till, probe, opens, since = tonumber(till), tonumber(probe), tonumber(opens), tonumber(since)
  local back = math.max(since, tonumber(call('HGET', base .. 'circuits_at', topic) or 0)) - now
  if back > 0 then
    till, probe, since = math.max(0, till - back), math.max(0, probe - back), math.min(since, now)
    write_circuit(topic, till, probe, opens, since, why)
  end
  return till, probe, opens, since, why
end

-- Lets the next job of a topic through if this job is its probe. Call it when the lease of a job ends, the probe has no
-- result, and `l:` still has the lease.
-- `m` has the moves of the topic, and what was read of its circuit, which is read once.
local function end_probe(m, id)
  m.circuit = m.circuit or { circuit_of(m.topic) }
  local till, probe, opens, since, why = unpack(m.circuit)
  if probe and probe > now and tonumber(call('ZSCORE', base .. 'l:' .. m.topic, id) or 0) == probe then
    write_circuit(m.topic, till, 0, opens, since, why)
    m.circuit[2] = 0
  end
end
