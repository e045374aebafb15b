-- What wrk sends in one round. Arguments:
--
--   1  none: no key; fresh: a key of its own for each request;
--      stored: the keys from 0 to <3> in turn
--   2  what keys begin with
--   3  how many keys are stored
--   4  a file with the body
--
-- A key has 36 characters, as the peer that wants UUIDs does. The request is
-- put together around it, so that a large body is copied once.
--
-- The figures go to standard output as one line of JSON.

local placeholder = string.rep('k', 36)
local kind, prefix, stored
local before, after
local sent = 0

function init(args)
  kind, prefix, stored = args[1], args[2], tonumber(args[3])
  local file = assert(io.open(args[4], 'rb'))
  local headers = {
    ['Content-Type'] = 'application/json',
    ['Authorization'] = 'Bearer caller',
    ['Host'] = wrk.headers['Host'],
  }
  if kind ~= 'none' then headers['Idempotency-Key'] = placeholder end
  local whole = wrk.format('POST', nil, headers, file:read('*a'))
  file:close()
  before = whole
  if kind ~= 'none' then
    local first, last = string.find(whole, placeholder, 1, true)
    before, after = string.sub(whole, 1, first - 1), string.sub(whole, last + 1)
  end
end

function request()
  if kind == 'none' then return before end
  local n = sent
  if kind == 'stored' then n = n % stored end
  sent = sent + 1
  return before .. string.format('%s%0' .. 36 - #prefix .. 'd', prefix, n) .. after
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"microseconds":%d,"mean":%f,"p50":%d,"p99":%d,"failed":%d}\n',
    summary.requests, summary.duration, latency.mean, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
