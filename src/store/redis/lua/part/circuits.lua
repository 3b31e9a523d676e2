-- Circuits that are not closed. `circuits` keeps of each topic: until when none is let through, until when the one that was let
-- through is waited for, how often it was opened, since when, and why. `circuits_at` keeps when that was written last: a clock
-- that shows less was set back meanwhile, and what waits would wait for longer than it was told to. (The release before writes no
-- such moment; since when the circuit is open is one as well.) Needs: clock.

local function write_circuit(topic, till, probe, opens, since, why)
  -- A removal comes first: see moves.
  call('HDEL', base .. 'circuits_at', topic)
  call('HSET', base .. 'circuits', topic, string.format('%.0f %.0f %d %.0f %s', till, probe, opens, since, why))
  call('HSET', base .. 'circuits_at', topic, string.format('%.0f', now))
end

-- What is kept of a topic's circuit; nothing: it is closed. Where the clock was set back, its moments are set back as well.
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
