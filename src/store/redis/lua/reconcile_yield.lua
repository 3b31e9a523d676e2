--@ use clock bells scores records leases moves copies
-- Lets go of what has been replaced elsewhere: of jobs that were added on another node while this shard was away, its own
-- copies go if they are older. The holder is told next: see reconcile_demote.
--
-- KEYS  1 the base of the jobs' home shard
-- ARGV  for each entry: topic, id, the stamp of the copy on the other node
-- Gives one letter an entry, in their order: y it has no copy, or had an older one; o its own copy is as new or newer
--
-- Moves a job: delayed, ready, leased -> nothing (what settles its lease is stale)

local letters = {}
for i = 1, #ARGV, 3 do
  local topic, id = ARGV[i], ARGV[i + 1]
  local own, letter = call('HGET', base .. 'b:' .. topic, id), 'y'
  if own and stamp_of(own) >= tonumber(ARGV[i + 2]) then
    letter = 'o'
  elseif own then
    let_go(topic, id)
  end
  letters[#letters + 1] = letter
end
return table.concat(letters)
