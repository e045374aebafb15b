-- KEYS[1]  the record
-- ARGV[1]  a random text that names the question
-- ARGV[2]  digest of the value that the operator has judged, in hexadecimal
-- What cannot be read is removed, too.
-- Result: 'applied', or 'refused' if there is nothing, or another value, or a
-- record whose attempt is alive.

local value = redis.pcall('GET', KEYS[1])
if not value then return reply('forget', ARGV[1], 'refused') end
local seen, failure = digest(value)
if failure then return failure end
if seen ~= ARGV[2] then return reply('forget', ARGV[1], 'refused') end
local record = read()
if record and record.state == 'p' and now < record.lease_until then
  return reply('forget', ARGV[1], 'refused')
end
redis.call('DEL', KEYS[1])
return reply('forget', ARGV[1], 'applied')
