--@ use shard
-- Returns the secret that signs the tickets of the node's leases. Makes it at the first call.
--
-- KEYS  1 the base of the node's first shard
-- ARGV  1 32 random bytes
-- Returns the secret
--
-- Changes the state of no job.

local key = base .. 'secret'
local secret = call('GET', key)
if not secret then
  call('SET', key, ARGV[1])
  secret = ARGV[1]
end
return secret
