-- KEYS[1]  the record
-- KEYS[2]  the store's marker; optional
-- ARGV[1]  token of the attempt, 16 bytes
-- ARGV[2]  fingerprint, 32 bytes
-- ARGV[3]  lease, ms
-- ARGV[4]  retention, ms
-- ARGV[5]  '1' to take over an uncertain record
-- ARGV[6]  not after, Unix ms of this server's clock
-- ARGV[7]  payload
-- ARGV[8]  what the marker must have, if it is given
-- Result: 'claimed'; 'taken_over' if it was granted on another attempt's record;
-- 'lost' if the marker does not have it; 'too_late'; 'other_request', 'completed', 'in_progress' or
-- 'uncertain' with the record as sixth element.
--
-- It runs without flags on purpose: a server over maxmemory then refuses the
-- SET, and still answers replays.

local token, fingerprint = ARGV[1], ARGV[2]
local lease, retention, not_after = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[6])

if KEYS[2] then
  local marker = redis.call('GET', KEYS[2])
  if not marker or not string.find(marker, ARGV[8], 1, true) then return reply('claim', token, 'lost') end
end

local record, unreadable = read()
if unreadable then return unreadable end

local mine = record and record.state == 'p' and record.token == token
if record and not mine then
  if record.fingerprint ~= fingerprint then return reply('claim', token, 'other_request', record.value) end
  if record.state == 'c' then return reply('claim', token, 'completed', record.value) end
  if record.state == 'p' and now < record.lease_until then
    return reply('claim', token, 'in_progress', record.value)
  end
  if ARGV[5] ~= '1' then return reply('claim', token, 'uncertain', record.value) end
end

if now > not_after then return reply('claim', token, 'too_late') end
local created, state = now, 'p'
if record then
  created = record.created
  if not mine or record.resubmitted then state = 'r' end
end
write(state, token, fingerprint, created, now, now + lease, retention, ARGV[7])
return reply('claim', token, state == 'r' and 'taken_over' or 'claimed')
