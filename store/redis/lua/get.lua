-- KEYS[1]  the record
-- ARGV[1]  a random text that names the question
-- Result: 'found' with the record as sixth element, or 'absent'.

local record, unreadable = read()
if unreadable then return unreadable end
if not record then return reply('get', ARGV[1], 'absent') end
return reply('get', ARGV[1], 'found', record.value)
