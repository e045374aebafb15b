-- KEYS[1]  the record
-- ARGV[1]  token of the record that the operator has judged
-- ARGV[2]  payload with the operator's answer
-- The record is nobody's from then on: its attempt changes nothing any more.
-- Result: 'applied', or 'refused' if there is no record, or it has another
-- token or is not uncertain.

local record, unreadable = read()
if unreadable then return unreadable end
if not record or record.token ~= ARGV[1] or not undecided(record) then
  return reply('decide_complete', ARGV[1], 'refused')
end
write('c', string.rep('\0', 16), record.fingerprint, record.created, now,
  record.lease_until, record.retention, ARGV[2])
return reply('decide_complete', ARGV[1], 'applied')
