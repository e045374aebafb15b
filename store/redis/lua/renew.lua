-- KEYS[1]  the record
-- ARGV[1]  token of the attempt
-- ARGV[2]  lease from now, ms
-- Result: 'applied', or 'refused' if the lease is lost.

local record, unreadable = read()
if unreadable then return unreadable end
if not record or record.token ~= ARGV[1] or record.state ~= 'p' or now >= record.lease_until then
  return reply('renew', ARGV[1], 'refused')
end
local state = 'p'
if record.resubmitted then state = 'r' end
write(state, record.token, record.fingerprint, record.created, record.changed,
  now + tonumber(ARGV[2]), record.retention, string.sub(record.value, HEADER + 1))
return reply('renew', ARGV[1], 'applied')
