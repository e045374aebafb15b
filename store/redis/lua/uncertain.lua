-- KEYS[1]  the record
-- ARGV[1]  token of the attempt
-- ARGV[2]  payload with the reason
-- Result: 'applied', or 'refused' if the record is not this attempt's or is
-- completed.

local record, unreadable = read()
if unreadable then return unreadable end
if not record or record.token ~= ARGV[1] or record.state == 'c' then
  return reply('uncertain', ARGV[1], 'refused')
end
if record.state ~= 'u' then
  write('u', record.token, record.fingerprint, record.created, now,
    record.lease_until, record.retention, ARGV[2])
end
return reply('uncertain', ARGV[1], 'applied')
