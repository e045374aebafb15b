-- Read before each script. The binary form of a record is documented in
-- idempotency/record.go; these are the same offsets, counted from 1.
--
-- Every reply is {operation, record key, token, now in Unix ms, result, ...}:
-- it names what was asked, so that a reply that belongs to another question is
-- noticed. A value that is not understood is an error and is left alone; the
-- error starts with UNREADABLE.

-- Older servers cannot run all of the scripts, so they run none: otherwise a
-- submit would go out whose outcome could not be stored.
if not redis.REDIS_VERSION_NUM then
  return redis.error_reply('OLDSERVER Redis 7.0 or later is needed')
end

local HEADER = 82
local VERSION = 1

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function reply(operation, token, result, ...)
  return {operation, KEYS[1], token, tostring(now), result, ...}
end

-- When a record vanishes, as Record.ExpiresAt says. The state may be a letter as
-- it is stored: 'r' is in progress after a take-over.
local function expires_at(state, changed, lease_until, retention)
  if state == 'p' or state == 'r' then return lease_until + retention end
  return changed + retention
end

-- Whether a time, in Unix ms, is in the years 0 to 9999.
local function is_date(ms) return ms >= -62167219200000 and ms < 253402300800000 end

-- The record under KEYS[1] as a table, nil if there is none, or an error reply
-- as the second result.
local function read()
  local value = redis.pcall('GET', KEYS[1])
  if not value then return nil end
  if type(value) == 'table' then
    return nil, redis.error_reply('UNREADABLE record is not a string')
  end
  if #value < HEADER or string.byte(value, 1) ~= VERSION then
    return nil, redis.error_reply('UNREADABLE record has an unknown version')
  end
  local state = string.sub(value, 2, 2)
  local resubmitted = state == 'r'
  if resubmitted then state = 'p' end
  if state ~= 'p' and state ~= 'c' and state ~= 'u' then
    return nil, redis.error_reply('UNREADABLE record has an unknown state')
  end
  local created, changed, lease_until, retention = struct.unpack('>i8i8i8I8', value, 51)
  if retention > 9223372036854 then
    return nil, redis.error_reply('UNREADABLE record has a retention that is no duration')
  end
  if not (is_date(created) and is_date(changed) and is_date(lease_until)
      and is_date(expires_at(state, changed, lease_until, retention))) then
    return nil, redis.error_reply('UNREADABLE record has a time that is no date')
  end
  return {
    value = value,
    state = state,
    resubmitted = resubmitted,
    token = string.sub(value, 3, 18),
    fingerprint = string.sub(value, 19, 50),
    created = created,
    changed = changed,
    lease_until = lease_until,
    retention = retention,
  }
end

-- Whether an operator may decide about the record: an attempt whose lease is
-- over is uncertain, too.
local function undecided(record)
  return record.state == 'u' or (record.state == 'p' and now >= record.lease_until)
end

-- Writes a record. The state is a letter as it is stored.
local function write(state, token, fingerprint, created, changed, lease_until, retention, payload)
  local expires = expires_at(state, changed, lease_until, retention)
  redis.call('SET', KEYS[1],
    string.char(VERSION) .. state .. token .. fingerprint ..
    struct.pack('>I8I8I8I8', created, changed, lease_until, retention) .. payload,
    'PX', string.format('%d', math.max(1, expires - now)))
end
