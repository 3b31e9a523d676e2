--@ use clock fence bells scores places meter numbered moves leases records history unsettled
-- Gives jobs other due times, or deletes jobs. Each job is changed only if it is still as it was listed.
--
-- KEYS  1 the shard's base   2 the set of nodes: see fence
-- ARGV  for each topic: topic, n, and n times: id, its stamp in us, its due time in ms, and its new due time in ms or
--       '-' to delete it
-- Returns one letter for each job, in their order: d done, a it already had the new due time, x it is not as it was
-- listed (or it is leased and should get another due time), n there is no job with this id
--
-- Moves a job: delayed, ready -> delayed, ready. To delete it: delayed, ready, leased -> nothing

local argv, out = ARGV, {}
local i = 1
while argv[i] do
  local topic, n = argv[i], tonumber(argv[i + 1])
  local m, ids, seen = moves(topic), {}, {}
  for k = 1, n do ids[k] = argv[i + 4 * k - 2] end
  local delayed = call('ZMSCORE', base .. 'd:' .. topic, unpack(ids))
  local ready = call('ZMSCORE', base .. 'r:' .. topic, unpack(ids))
  local leases = call('HMGET', base .. 'L:' .. topic, unpack(ids))
  local bodies = call('HMGET', base .. 'b:' .. topic, unpack(ids))
  for k, id in ipairs(ids) do
    local at = i + 4 * k - 2
    local stamp, due, aim, record = tonumber(argv[at + 1]), tonumber(argv[at + 2]), argv[at + 3], bodies[k]
    local letter, was, rank, lease = 'n', nil, nil, nil
    if record and not seen[id] then
      seen[id] = true
      if delayed[k] then
        was, rank = from_delayed(tonumber(delayed[k]))
      elseif ready[k] then
        was, rank = from_ready(tonumber(ready[k]))
      else
        lease = lease_of(leases[k])
        was = lease.due
      end
      letter = 'x'
      if stamp_of(record) == stamp then
        if aim ~= '-' and was == tonumber(aim) then
          letter = 'a'
        elseif was == due and (aim == '-' or not lease) then
          letter = 'd'
          if delayed[k] then add(m, 'from_delayed', id) end
          if ready[k] then leave_ready(m, id, ready[k]) end
          if aim ~= '-' then
            place(m, id, tonumber(aim), rank)
          else
            if lease then unlease(m, id, lease) end
            ends_unsettled(m, id, DELETED, delayed[k], ready[k], leases[k], record)
            add(m, 'gone', id)
            add(m, 'forgotten', id)
          end
        end
      end
    elseif record then
      letter = 'x'
    end
    out[#out + 1] = letter
  end
  make(m)
  keep(m)
  i = i + 4 * n + 2
end
return table.concat(out)
