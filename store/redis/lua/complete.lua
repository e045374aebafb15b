-- KEYS[1]  the record
-- ARGV[1]  token of the attempt
-- ARGV[2]  payload with the answer
-- Result: 'applied', or 'refused' if the record is not this attempt's.

local record, unreadable = read()
if unreadable then return unreadable end
if not record or record.token ~= ARGV[1] then return reply('complete', ARGV[1], 'refused') end
if record.state ~= 'c' then
  write('c', record.token, record.fingerprint, record.created, now,
    record.lease_until, record.retention, ARGV[2])
end
return reply('complete', ARGV[1], 'applied')
