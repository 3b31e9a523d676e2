--@ use shard
-- Tells how many jobs this shard holds whose home is another node.
--
-- KEYS  1 the shard's base
-- ARGV  nodes
-- Gives two numbers a node: how many were added here in its place, of which it has not been told yet; and how many others
-- are to be moved there
--
-- Moves nothing.

local out = {}
for i, node in ipairs(ARGV) do
  out[2 * i - 1], out[2 * i] = call('HLEN', base .. 'away:' .. node), call('HLEN', base .. 'stray:' .. node)
end
return out
