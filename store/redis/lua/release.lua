-- KEYS[1]  the record
-- ARGV[1]  token of the attempt
-- A record that the attempt had taken over is not removed: it becomes uncertain
-- again, and nobody's, because the outcome of the attempt before is as unknown
-- as it was.
-- Result: 'applied', or 'refused' if there is no record, or it is not this
-- attempt's or is completed.

local record, unreadable = read()
if unreadable then return unreadable end
if not record or record.token ~= ARGV[1] or record.state == 'c' then
  return reply('release', ARGV[1], 'refused')
end
if record.resubmitted then
  write('u', string.rep('\0', 16), record.fingerprint, record.created, now,
    record.lease_until, record.retention, string.sub(record.value, HEADER + 1))
else
  redis.call('DEL', KEYS[1])
end
return reply('release', ARGV[1], 'applied')
