-- KEYS[1]  the record
-- ARGV[1]  token of the record that the operator has judged
-- Result: 'applied', or 'refused' if there is no record, or it has another
-- token or is not uncertain.

local record, unreadable = read()
if unreadable then return unreadable end
if not record or record.token ~= ARGV[1] or not undecided(record) then
  return reply('decide_release', ARGV[1], 'refused')
end
redis.call('DEL', KEYS[1])
return reply('decide_release', ARGV[1], 'applied')
