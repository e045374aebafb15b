-- KEYS[1]  the store's marker
-- ARGV[1]  a random text that names the question
-- ARGV[2]  the ids that a gateway knows, with spaces between them
-- They are added to what the marker has. Whoever knows one of them is content.
-- Result: 'adopted' with the marker as sixth element.

local marker = redis.call('GET', KEYS[1]) or ''
for id in string.gmatch(ARGV[2], '%S+') do
  if not string.find(marker, id, 1, true) then
    if marker ~= '' then marker = marker .. ' ' end
    marker = marker .. id
  end
end
redis.call('SET', KEYS[1], marker)
return reply('adopt', ARGV[1], 'adopted', marker)
