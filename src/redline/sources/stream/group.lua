-- One turn of one consumer: its group's pending messages, and the marks of those whose outcomes are
-- being written. See group.py.
local stream, marks = KEYS[1], KEYS[2]
local turn, group, me = ARGV[1], ARGV[2], ARGV[3]

local function given(first)
  local ids = {}
  for place = first, #ARGV do ids[#ids + 1] = ARGV[place] end
  return ids
end

local function is_mine(id)
  return #redis.call('XPENDING', stream, group, id, id, 1, me) == 1
end

-- mark ID...: 1 for each message that is still this consumer's; no other consumer takes it now.
if turn == 'mark' then
  local found = {}
  for place, id in ipairs(given(4)) do
    found[place] = 0
    if is_mine(id) then
      redis.call('HSET', marks, id, me)
      found[place] = 1
    end
  end
  return found
end

-- ack ID...: their outcomes are durable.
if turn == 'ack' then
  local ids = given(4)
  redis.call('HDEL', marks, unpack(ids))
  return redis.call('XACK', stream, group, unpack(ids))
end

-- Claims messages for this consumer with this idle time, without counting a delivery.
local function claim_quietly(ids, idle_ms)
  local command = {'XCLAIM', stream, group, me, 0}
  for _, id in ipairs(ids) do command[#command + 1] = id end
  command[#command + 1] = 'IDLE'
  command[#command + 1] = idle_ms or 0
  command[#command + 1] = 'JUSTID'
  redis.call(unpack(command))
end

-- keep ID...: this consumer is alive, so the messages that are still its own are not idle.
if turn == 'keep' then
  local own = {}
  for _, id in ipairs(given(4)) do
    if is_mine(id) then own[#own + 1] = id end
  end
  if #own > 0 then claim_quietly(own) end
  return #own
end

-- Calls `take` with each pending message of `owner` or, if it is nil, with each that has been idle
-- for `idle_ms`, until it returns a true value. start: where to begin, for XPENDING.
local function each_pending(idle_ms, owner, take, start)
  local from = start or '-'
  while true do
    local page
    if owner then
      page = redis.call('XPENDING', stream, group, from, '+', 100, owner)
    else
      page = redis.call('XPENDING', stream, group, 'IDLE', idle_ms, from, '+', 100)
    end
    for _, entry in ipairs(page) do
      if take(entry[1], entry[2], entry[3], entry[4]) then return end
      from = '(' .. entry[1]
    end
    if #page < 100 then return end
  end
end

-- release IDLE START: any consumer may now take this consumer's messages from START on, except
-- those being written. A turn takes 5,000, and returns where the next one begins.
if turn == 'release' then
  local ids, rest = {}, nil
  each_pending(0, me, function(id)
    if redis.call('HEXISTS', marks, id) == 0 then ids[#ids + 1] = id end
    if #ids == 5000 then rest = '(' .. id end
    return rest
  end, ARGV[5])
  if #ids > 0 then claim_quietly(ids, ARGV[4]) end
  return rest
end

-- left IDLE: how many messages wait for an acknowledgement, how many of them are orphans, whose
-- consumer marked them and has been silent for IDLE ms since, and one such consumer.
if turn == 'left' then
  local orphans, whose = 0, ''
  each_pending(ARGV[4], nil, function(id, owner)
    if owner ~= me and redis.call('HEXISTS', marks, id) == 1 then
      orphans, whose = orphans + 1, owner
    end
  end)
  return {redis.call('XPENDING', stream, group)[1], orphans, whose}
end

-- own COUNT ID...: this consumer's pending messages (from an earlier process of the same name),
-- except those named. claim COUNT IDLE ORPHANS: other consumers' idle messages. Both count as one
-- more delivery. Returns each as id, deliveries and fields.
local wanted, skipped = tonumber(ARGV[4]), {}
local ids, deliveries = {}, {}
local function take(id, owner, _, delivered)
  if not skipped[id] then
    ids[#ids + 1] = id
    deliveries[id] = delivered + 1
  end
  return #ids == wanted
end
if turn == 'own' then
  for _, id in ipairs(given(5)) do skipped[id] = true end
  each_pending(0, me, take)
else
  local takes_orphans = ARGV[6] == '1'
  each_pending(ARGV[5], nil, function(id, owner, idle_ms, delivered)
    if owner == me then return false end
    if not takes_orphans and redis.call('HEXISTS', marks, id) == 1 then return false end
    return take(id, owner, idle_ms, delivered)
  end)
end
if #ids == 0 then return {} end
local found, is_there = {}, {}
for _, entry in ipairs(redis.call('XCLAIM', stream, group, me, 0, unpack(ids))) do
  if entry and entry[2] then
    is_there[entry[1]] = true
    found[#found + 1] = {entry[1], deliveries[entry[1]], entry[2]}
  end
end
-- No consumer can process a message that was deleted from the stream or trimmed away.
for _, id in ipairs(ids) do
  if not is_there[id] then
    redis.call('XACK', stream, group, id)
    redis.call('HDEL', marks, id)
  end
end
return found
