--@ use shard
-- Tells what tickets for the node's leases are signed with, and makes it when it is first asked for.
--
-- KEYS  1 the base of the node's first shard
-- ARGV  1 32 random bytes
-- Gives the secret
--
-- Moves nothing.

local key = base .. 'secret'
local secret = call('GET', key)
if not secret then
  call('SET', key, ARGV[1])
  secret = ARGV[1]
end
return secret
