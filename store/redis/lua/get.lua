-- KEYS[1]  the record
-- ARGV[1]  a random text that names the question
-- Result: 'found' with the record as sixth element, 'absent', or 'unreadable'
-- with the value's digest in hexadecimal, and why.

local record, unreadable = read()
if unreadable then
  local seen, failure = digest(redis.pcall('GET', KEYS[1]))
  if failure then return failure end
  return reply('get', ARGV[1], 'unreadable', seen, unreadable.err)
end
if not record then return reply('get', ARGV[1], 'absent') end
return reply('get', ARGV[1], 'found', record.value)
