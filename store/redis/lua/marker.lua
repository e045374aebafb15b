-- KEYS[1]  the store's marker
-- ARGV[1]  a random text that names the question
-- ARGV[2]  an id to make the marker of if there is none; '' to look only
-- Result: 'found' with the marker as sixth element, or 'absent'.

local marker = redis.call('GET', KEYS[1])
if not marker then
  if ARGV[2] == '' then return reply('marker', ARGV[1], 'absent') end
  marker = ARGV[2]
  redis.call('SET', KEYS[1], marker)
end
return reply('marker', ARGV[1], 'found', marker)
