-- KEYS[1]  the record
-- ARGV[1]  token of the attempt
-- Result: 'applied', or 'refused' if there is no record, or it is not this
-- attempt's or is completed.

local record, unreadable = read()
if unreadable then return unreadable end
if not record or record.token ~= ARGV[1] or record.state == 'c' then
  return reply('release', ARGV[1], 'refused')
end
redis.call('DEL', KEYS[1])
return reply('release', ARGV[1], 'applied')
