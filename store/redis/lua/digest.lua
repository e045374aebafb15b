-- Read after record.lua by the scripts that name a value by its digest, as
-- idempotency.Digest says.

-- The digest of what GET gave, in hexadecimal: zeros for a value that is no
-- string; or an error reply as the second result.
local function digest(value)
  if type(value) ~= 'table' then return redis.sha1hex(value) end
  if string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then return nil, value end
  return string.rep('0', 40)
end
