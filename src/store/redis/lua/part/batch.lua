-- A batch that a host sends from its spool, perhaps more than once. It is taken only once. KEYS[3] is the base,
-- followed by the name of the sender and the number of the batch. Other callers have no KEYS[3]. Needs: `call`, and the
-- fence before it.
if KEYS[3] then
  local sender, number = string.match(KEYS[3], '^(.*):(%d+)$')
  if tonumber(call('GET', sender) or 0) >= tonumber(number) then return '' end
  -- Seven days, so that a sender can still ask for it. The next batch of the sender writes it again.
  call('SET', sender, number, 'PX', 604800000)
end
