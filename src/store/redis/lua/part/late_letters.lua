-- Late dead letters. A change that waits in a spool will replace or delete a job. This job may become a dead letter
-- during the wait. Without the wait, there would be no such letter. Needs: clock, meter, latest_letters.

-- The maximum number of dead letters that are removed for one id. For how many ms a dead letter's time of death may be
-- ahead of the clock.
local LATE_LETTERS, AHEAD = 256, 1000

-- Removes the last arguments of a batch from ARGV: topic, id and a moment (in ms) for each entry of a spool, and the
-- number of these entries. Removes the dead letters of each id that died at this moment or later.
local function remove_late_letters()
  for _ = 1, tonumber(table.remove(ARGV)) do
    local from = tonumber(table.remove(ARGV))
    local id = table.remove(ARGV)
    local topic = table.remove(ARGV)
    local letter_hash, letters = base .. 'X:' .. topic, base .. 'x:' .. topic
    local names = { id .. ZERO }
    local died = tonumber(call('ZSCORE', letters, names[1]) or 0)
    if died >= from and died <= now + AHEAD then
      local top = struct.unpack('>I4', call('HGET', letter_hash, names[1]), 7) + 1
      local first = top
      while first > 1 and #names < LATE_LETTERS do
        local name = numbered(id, first - 1)
        if tonumber(call('ZSCORE', letters, name) or 0) < from then break end
        names[#names + 1], first = name, first - 1
      end
      local bytes = bytes_of('X:', topic, names)
      drop_latest(letter_hash, letters, id, first, top)
      meter(topic, -bytes)
    end
  end
end
