-- Makes a shard take a batch only once, even if the sender sends it more than once. A batch comes from the spool of a
-- host, or a timer sends it from an outbox. KEYS[3] is the base, 'batch:', the name of the sender, ':' and the number
-- of the batch. For an outbox, '@' follows, and the number that the sender's last batch must have. A call that is not a
-- batch has no KEYS[3]. If the shard must not take the batch, the script changes nothing and returns an empty text.
-- Needs: `call`, and the fence.
if KEYS[3] then
  local sender, number, expected = string.match(KEYS[3], '^(.*):(%d+)@?(%d*)$')
  local last = tonumber(call('GET', sender) or 0)
  if last >= tonumber(number) or expected ~= '' and last ~= tonumber(expected) then return '' end
  -- The number is stored for seven days, so that a sender can still ask for it. The next batch of the sender writes a
  -- new number.
  call('SET', sender, number, 'PX', 604800000)
end
