-- limits/shared/schedule.py in Lua: the same rule in the same order, so that both give the same numbers.
-- KEYS[1]: the state. ARGV[1]: a LeaseRequest. Both, and the answer, are msgpack arrays; their
-- fields are in the order of the structs in schedule.py. ARGV[2]: the time, if not Redis's own.
local STALE_S, MOST_PARK_S, KEPT_S, MOST_LOWS = 5.0, 86400.0, 60.0, 256

local function clock_s()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local rq = cmsgpack.unpack(ARGV[1])
local owner, limits, rules, wants, changes = rq[1], rq[2], rq[3], rq[4], rq[5]
local guard_s, slack_s, lead_s, lease_s = rq[6], rq[7], rq[8], rq[9]
local seen_s, park_s, busy_s = rq[10], rq[11], rq[12]
local now_s = ARGV[2] and tonumber(ARGV[2]) or clock_s()

-- The index of the first stamp that is not below `stamp`.
local function place(stamps, stamp)
  local low, high = 1, #stamps + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if stamps[middle] < stamp then low = middle + 1 else high = middle end
  end
  return low
end

local function put(stamps, amounts, stamp, amount)
  local at = place(stamps, stamp)
  if stamps[at] == stamp then
    amounts[at] = amounts[at] + amount
  else
    table.insert(stamps, at, stamp)
    table.insert(amounts, at, amount)
  end
end

local function take(stamps, amounts, stamp, amount)
  local at = place(stamps, stamp)
  if stamps[at] ~= stamp then return 0 end
  amount = math.min(amount, amounts[at])
  amounts[at] = amounts[at] - amount
  if amounts[at] == 0 then
    table.remove(stamps, at)
    table.remove(amounts, at)
  end
  return amount
end

local function add(book, stamp_s, amount)
  if amount <= 0 then return end
  local stamp = math.ceil(stamp_s / book.grain_s)
  if #book.older > 0 and stamp <= book.older[#book.older] then
    put(book.older, book.olders, stamp, amount)
    return
  end
  put(book.stamps, book.amounts, stamp, amount)
  book.total = book.total + amount
end

local function remove(book, stamp_s, amount)
  local stamp = math.ceil(stamp_s / book.grain_s)
  if #book.older > 0 and stamp <= book.older[#book.older] then
    take(book.older, book.olders, stamp, amount)
    return
  end
  book.total = book.total - take(book.stamps, book.amounts, stamp, amount)
end

-- A rule's fields: 1 key, 2 count, 3 window_s, 4 unit_s, 5 burst, 6 is_hard, 7 grain_s,
-- 8 catch_up_s.
local function book_earliest(book, rule, amount)
  if not rule[6] then
    -- An amount above the burst leaves no room for the guard, so it waits for the guard.
    return book.full_at_s - (rule[5] - amount) * rule[4]
  end
  local at_s = book.full_at_s - math.max(0, rule[5] - amount) * rule[4]
  local excess = book.total + amount - rule[2]
  local index = 1
  while excess > 0 and index <= #book.stamps do
    excess = excess - book.amounts[index]
    if excess <= 0 then
      at_s = math.max(at_s, book.stamps[index] * book.grain_s + rule[3])
    end
    index = index + 1
  end
  return at_s
end

local function drop(list, count)
  local kept = {}
  for index = count + 1, #list do kept[index - count] = list[index] end
  return kept
end

-- Records what is missing from a bucket before a slot at at_s; of several at one time, the first.
local function keep_low(book, at_s)
  local lows_at_s, lows_s = book.lows_at_s, book.lows_s
  if #lows_s > 0 and at_s <= lows_at_s[#lows_s] then return end
  local low_s = 0
  if #lows_s > 0 then low_s = math.max(0, book.full_at_s - at_s) end
  while #lows_s > 0 and lows_s[#lows_s] >= low_s do
    table.remove(lows_at_s)
    table.remove(lows_s)
  end
  table.insert(lows_at_s, at_s)
  table.insert(lows_s, low_s)
  if #lows_s > MOST_LOWS then
    table.remove(lows_at_s, 1)
    table.remove(lows_s, 2)
  end
end

-- Credits a bucket with unused_s for a slot at planned_s, as far as it had room since.
local function refund(book, unused_s, planned_s)
  local lows_at_s, lows_s = book.lows_at_s, book.lows_s
  local at = #lows_s + 1
  while at > 1 and lows_at_s[at - 1] > planned_s do at = at - 1 end
  if #lows_s == 0 then
    unused_s = math.min(unused_s, 0)
  elseif at <= #lows_s then
    unused_s = math.min(unused_s, lows_s[at])
  end
  book.full_at_s = book.full_at_s - unused_s
  if unused_s <= 0 then return end
  for index = at, #lows_s do lows_s[index] = lows_s[index] - unused_s end
  while at > 1 and at <= #lows_s and lows_s[at - 1] >= lows_s[at] do
    at = at - 1
    table.remove(lows_at_s, at)
    table.remove(lows_s, at)
  end
end

local function book_slot(book, rule, amount, at_s, stamp_s)
  if not rule[6] then keep_low(book, at_s) end
  local behind_s = math.min(rule[8], busy_s)
  book.full_at_s = math.max(book.full_at_s, at_s - behind_s) + amount * rule[4]
  if not rule[6] then return end
  local gone = 0
  while gone < #book.stamps and book.stamps[gone + 1] * book.grain_s + rule[3] <= at_s do
    gone = gone + 1
    book.total = book.total - book.amounts[gone]
    if rule[8] > 0 then
      book.older[#book.older + 1] = book.stamps[gone]
      book.olders[#book.olders + 1] = book.amounts[gone]
    end
  end
  if rule[8] > 0 then
    local past = place(book.older, math.floor((at_s - 2 * rule[3]) / book.grain_s)) - 1
    if past > 0 then book.older, book.olders = drop(book.older, past), drop(book.olders, past) end
  end
  if gone > 0 then
    book.stamps, book.amounts = drop(book.stamps, gone), drop(book.amounts, gone)
  end
  add(book, stamp_s, amount)
end

-- An upper bound of what a sliding-window counter reads: a straight line from at_s to end_s.
local function read(book, rule, at_s, end_s)
  local stamps, amounts, left = {}, {}, {}
  for _, list in ipairs({{book.older, book.olders}, {book.stamps, book.amounts}}) do
    for index, stamp in ipairs(list[1]) do
      stamps[#stamps + 1], amounts[#amounts + 1] = stamp, list[2][index]
    end
  end
  left[#stamps + 1] = 0
  for index = #stamps, 1, -1 do left[index] = left[index + 1] + amounts[index] end
  local window_s, grain_s = rule[3], book.grain_s
  local first, last, before, behind = 0, 0, 1, 1
  local function see(begun_s, both, current)
    if at_s - window_s <= begun_s and begun_s <= end_s then
      local fall = (both - current) / window_s
      first = math.max(first, both - (at_s - begun_s) * fall)
      last = math.max(last, both - (end_s - begun_s) * fall)
    end
  end
  for index, stamp in ipairs(stamps) do
    local stamp_s = stamp * grain_s
    while stamps[before] * grain_s < stamp_s - window_s do before = before + 1 end
    while behind <= #stamps and stamps[behind] * grain_s < stamp_s + window_s do
      behind = behind + 1
    end
    see(stamp_s, left[before], left[index])
    see(stamp_s + window_s, left[index], left[behind])
  end
  return {count = rule[2], at_s = at_s, end_s = end_s, first = math.max(first, last),
          last = last, planned = 0}
end

local function reading_earliest(reading, amount, at_s)
  local fall = (reading.first - reading.last) / (reading.end_s - reading.at_s)
  local excess = reading.first + reading.planned + amount - reading.count
  if excess <= (at_s - reading.at_s) * fall then return at_s end
  local later_s = math.huge
  if fall > 0 then later_s = reading.at_s + excess / fall end
  return math.max(at_s, math.min(later_s, reading.end_s + (reading.end_s - reading.at_s) / 4))
end

local function fill(book, rule, stamp_s)
  book.full_at_s = stamp_s + rule[2] * rule[4]
  book.total, book.stamps, book.amounts, book.older, book.olders = 0, {}, {}, {}, {}
  book.lows_at_s, book.lows_s = {}, {}
  if rule[6] then add(book, stamp_s, rule[2]) end
end

local function new_book(rule, full_at_s)
  return {grain_s = rule[7], full_at_s = full_at_s, total = 0, stamps = {}, amounts = {},
          older = {}, olders = {}, lows_at_s = {}, lows_s = {}}
end

-- The key of the book with the shortest window that is not shorter than the rule's; if there is
-- none, of the book with the longest window.
local function nearest(books, rule)
  local kind, best, best_s, best_is_short = string.match(rule[1], '^[^/]*'), nil, 0, false
  for key in pairs(books) do
    local of_kind, window = string.match(key, '^([^/]*)/([^/]*)/')
    if of_kind == kind then
      local window_s = tonumber(window)
      local is_short = window_s < rule[3]
      local is_nearer = window_s < best_s
      if is_short then is_nearer = window_s > best_s end
      if not best or (best_is_short and not is_short)
          or (best_is_short == is_short and is_nearer) then
        best, best_s, best_is_short = key, window_s, is_short
      end
    end
  end
  return best
end

-- The rule's book after a change of the limits, based on an old book.
local function continued(state, rule)
  local books = state.books
  local book = books[rule[1]]
  if not book then
    local key = nearest(books, rule)
    if not key then return new_book(rule, now_s) end
    local old = books[key]
    book = new_book(rule, math.min(old.full_at_s, now_s + rule[3]))
    book.lows_at_s, book.lows_s = old.lows_at_s, old.lows_s
    for index, stamp in ipairs(old.older) do add(book, stamp * old.grain_s, old.olders[index]) end
    for index, stamp in ipairs(old.stamps) do add(book, stamp * old.grain_s, old.amounts[index]) end
  end
  if rule[6] and #book.lows_s > 0 then
    -- The old book was a bucket's, which keeps no stamps: a whole window counts as sent at its
    -- last slot.
    add(book, state.last_s, rule[2])
    book.lows_at_s, book.lows_s = {}, {}
  end
  return book
end

local function load()
  local blob = redis.call('GET', KEYS[1])
  local state = {limits = limits, touched_s = now_s, last_s = 0, parked_s = 0,
                 line = {}, books = {}}
  if not blob then return state end
  local kept = cmsgpack.unpack(blob)
  state.limits, state.touched_s, state.last_s = kept[1], kept[2], kept[3]
  state.parked_s, state.line = kept[4], kept[5]
  for key, book in pairs(kept[6]) do
    state.books[key] = {grain_s = book[1], full_at_s = book[2], total = book[3],
                        stamps = book[4], amounts = book[5],
                        older = book[6] or {}, olders = book[7] or {},
                        lows_at_s = book[8] or {}, lows_s = book[9] or {}}
  end
  return state
end

local function save(state)
  local books, longest_s = {}, 0
  for key, book in pairs(state.books) do
    books[key] = {book.grain_s, book.full_at_s, book.total, book.stamps, book.amounts,
                  book.older, book.olders, book.lows_at_s, book.lows_s}
  end
  for _, rule in ipairs(rules) do longest_s = math.max(longest_s, rule[3]) end
  local kept = {state.limits, state.touched_s, state.last_s, state.parked_s,
                state.line, books}
  local until_s = math.max(state.parked_s, state.last_s + longest_s, now_s) + KEPT_S
  redis.call('SET', KEYS[1], cmsgpack.pack(kept), 'PX', math.ceil((until_s - now_s) * 1000))
end

local function shift(state, by_s)
  state.touched_s = state.touched_s - by_s
  state.last_s = state.last_s - by_s
  state.parked_s = state.parked_s - by_s
  for _, spot in ipairs(state.line) do
    spot[2], spot[3] = spot[2] - by_s, spot[3] - by_s
  end
  for _, book in pairs(state.books) do
    book.full_at_s = book.full_at_s - by_s
    local by = math.floor(by_s / book.grain_s)
    for index, stamp in ipairs(book.stamps) do book.stamps[index] = stamp - by end
    for index, stamp in ipairs(book.older) do book.older[index] = stamp - by end
    if #book.lows_s > 0 then
      book.lows_at_s, book.lows_s = {book.lows_at_s[#book.lows_s]}, {0}
    end
  end
end

local function earliest(state, amounts, from_s, readings)
  for index, rule in ipairs(rules) do
    from_s = math.max(from_s, book_earliest(state.books[rule[1]], rule, amounts[index]))
  end
  for index = 1, #rules do
    if readings[index] then
      from_s = reading_earliest(readings[index], amounts[index], from_s)
    end
  end
  return from_s
end

local function doubt(state)
  local longest_s = 0
  for _, rule in ipairs(rules) do longest_s = math.max(longest_s, rule[3]) end
  if seen_s == 0 or state.last_s >= seen_s or now_s >= seen_s + longest_s then return end
  for _, rule in ipairs(rules) do
    fill(state.books[rule[1]], rule, now_s + slack_s + guard_s)
  end
  state.last_s = now_s + 2 * lease_s + lead_s
end

-- A change's fields: 1 from_s, 2 to_s, 3 before, 4 after, 5 planned_s, 6 was_sent.
local function correct(state, change)
  local to_s = math.min(change[2], now_s + lease_s + slack_s + guard_s)
  for index, rule in ipairs(rules) do
    local book = state.books[rule[1]]
    local before, after = change[3][index], change[4][index]
    local unused_s = (before - after) * rule[4]
    if not rule[6] then
      refund(book, unused_s, change[5])
    else
      remove(book, change[1], before)
      add(book, to_s, after)
      if change[6] then
        book.full_at_s = book.full_at_s - unused_s
      elseif rule[5] > 1 or change[5] >= state.last_s then
        local refund_s = math.max(0, unused_s - math.max(0, now_s - change[5]))
        book.full_at_s = book.full_at_s - refund_s
      end
    end
  end
end

-- A place's fields: 1 owner, 2 kept_s, 3 until_s.
local function plan(state)
  local others, mine = {}, nil
  for _, spot in ipairs(state.line) do
    if spot[1] == owner then
      mine = #others
    elseif spot[3] > now_s then
      others[#others + 1] = spot
    end
  end
  mine = mine or #others
  state.line = others
  local times = {}
  if #wants == 0 then return times, now_s, now_s end
  local from_s = math.max(now_s + lead_s, state.last_s, state.parked_s)
  local until_s = now_s + lead_s + lease_s
  local readings = {}
  for index, rule in ipairs(rules) do
    if rule[8] > 0 then
      readings[index] = read(state.books[rule[1]], rule, from_s, math.max(until_s, from_s + rule[7]))
    end
  end
  local at_s = earliest(state, wants[1], from_s, readings)
  local is_behind = false
  for index = 1, mine do is_behind = is_behind or others[index][2] > now_s end
  if not is_behind then
    for _, amounts in ipairs(wants) do
      at_s = earliest(state, amounts, from_s, readings)
      if at_s > until_s then break end
      for index, rule in ipairs(rules) do
        book_slot(state.books[rule[1]], rule, amounts[index], at_s, at_s + slack_s + guard_s)
        local reading = readings[index]
        if reading then reading.planned = reading.planned + amounts[index] end
      end
      from_s, state.last_s = at_s, at_s
      times[#times + 1] = at_s
    end
  end
  if #times == #wants then
    return times, now_s + (#others > 0 and lease_s / 8 or 0), at_s
  end
  local free_s, ask_s = at_s - (until_s - now_s), nil
  if #times > 0 then
    mine, ask_s = #others, free_s
  elseif mine == 0 then
    ask_s = math.min(free_s, now_s + lease_s / 2)
  else
    ask_s = now_s + lease_s / 4
  end
  local is_large = false
  for _, amount in ipairs(wants[#times + 1]) do is_large = is_large or amount > 1 end
  local kept_s = free_s + (is_large and lease_s / 2 or 0)
  table.insert(others, mine + 1, {owner, kept_s, math.max(now_s, ask_s) + lead_s + lease_s / 2})
  return times, ask_s, at_s
end

local state = load()
if state.limits ~= limits and now_s - state.touched_s < STALE_S then
  return cmsgpack.pack({now_s, {}, now_s, now_s, state.limits})
end
if now_s < state.touched_s then shift(state, state.touched_s - now_s) end
if state.limits ~= limits then
  local books = {}
  for _, rule in ipairs(rules) do books[rule[1]] = continued(state, rule) end
  state.books, state.limits = books, limits
end
for _, rule in ipairs(rules) do
  if not state.books[rule[1]] then
    state.books[rule[1]] = new_book(rule, now_s)
  end
end
doubt(state)
state.touched_s = now_s
for _, change in ipairs(changes) do correct(state, change) end
state.parked_s = math.max(state.parked_s, math.min(park_s, now_s + MOST_PARK_S))
local times, free_s, at_s = plan(state)
save(state)
return cmsgpack.pack({now_s, times, free_s, state.parked_s, '', at_s})
