"""Simulates a server with fitted service times, as a member of a pool."""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from itertools import count

import msgspec

from redline.calls.http import EndpointLimits
from redline.calls.tokens import PREFIX_CHARS
from redline.calls.wire import Endpoint
from redline.clock import Clock
from redline.errors import ServerFailed
from redline.limits import Cost, Limits
from redline.route.replay.service import Service, quantile
from redline.timeline import CallEnded, EndpointFacts
from redline.waist import Attempt, Call, Load, Outcome, Reply, Request, Sink, failed

# Prefixes that a server caches: enough for 4,000 prompts of a few thousand tokens.
_MOST_BLOCKS = 100_000


class Replayed(msgspec.Struct, frozen=True):
    """A recorded call that is replayed. draws: the source of the random part of its work."""

    call: CallEnded
    draws: random.Random

    @property
    def cost(self) -> Cost:
        return Cost(self.call.input_tokens or 0, self.call.output_tokens or 0)


class PromptCache:
    """The cached prefixes of the latest prompts that a server has read."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def share(self, blocks: tuple[int, ...]) -> float:
        """Returns the share of a prompt that is cached, 0 to 1; then caches the whole prompt."""
        known = 0
        while known < len(blocks) and blocks[known] in self._blocks:
            known += 1
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > _MOST_BLOCKS:
            self._blocks.popitem(last=False)
        return PREFIX_CHARS[known - 1] / PREFIX_CHARS[len(blocks) - 1] if known else 0.0


class ReplayServer:
    """A member of a pool that answers recorded calls according to a service model.

    Its times are those of the event loop. facts: slots and rate limits, which apply as for a real
    endpoint. Requests must be made by `request_of`.
    """

    def __init__(
        self,
        facts: EndpointFacts,
        service: Service,
        clock: Clock,
        on_room: Callable[[], None] | None,
    ) -> None:
        limits = Limits(
            requests=facts.requests,
            tokens=facts.tokens,
            input_tokens=facts.input_tokens,
            output_tokens=facts.output_tokens,
            profile=facts.profile,
        )
        self.on_room = on_room
        self.name = facts.name
        self._service = service
        self._slots = facts.slots
        endpoint = Endpoint(base_url="http://replayed", limits=limits)
        self._limits = EndpointLimits(endpoint, clock)
        self._limiter, self._ahead = self._limits.limiter, self._limits.ahead
        self._cache = PromptCache()
        self._work = _work_of(service)
        self._in_flight = 0

    def has_room(self, now_s: float, coming: int = 0) -> bool:
        has_slot = not self._slots or self._in_flight + coming < self._slots
        return has_slot and (self._limiter.is_unlimited or self._limits.has_room(now_s, coming))

    def withdraw(self, call: Call | None = None) -> int:
        """Withdraws no call: a simulated server is never parked or lost."""
        return 0

    def load(self, now_s: float, request: Request | None = None) -> Load:
        room_s = self._limiter.room_s(
            Cost() if request is None else self._cut(replayed_of(request).cost), now_s
        )
        if not self.has_room(now_s):
            room_s = max(room_s, math.ulp(0.0))
        return Load(
            in_flight=self._in_flight,
            waiting=self._ahead.in_use + self._ahead.waiting,
            slots=self._slots,
            room_s=room_s,
            opens_s=self._limits.next_s(now_s) - self._limits.lead_s,
        )

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        loop, replayed = asyncio.get_running_loop(), replayed_of(request)
        self._in_flight += 1
        try:
            if not self._limiter.is_unlimited:
                await self._granted(replayed, call)
            sent_s = loop.time()
            error = await self._answered(replayed)
        finally:
            self._in_flight -= 1
        done_s, cost = loop.time(), replayed.cost
        if error is None:
            outcome = Outcome(
                status="succeeded",
                reply=Reply(input_tokens=cost.input_tokens, output_tokens=cost.output_tokens),
                endpoint=self.name,
            )
        else:
            outcome = failed(error, endpoint=self.name)
        outcome.latency_s = done_s - sent_s
        outcome.tried = (Attempt(self.name, error, sent_s, None, done_s),)
        return outcome

    async def aclose(self) -> None:
        await self._limiter.aclose()

    async def _granted(self, replayed: Replayed, call: Call) -> None:
        cost = self._cut(replayed.cost)
        grant = self._limiter.acquire_now(cost)
        if grant is None:
            self._limits.expects(cost)
            await self._ahead.acquire(call.priority)
            try:
                grant = await self._limiter.acquire(cost, call.priority)
            finally:
                self._ahead.release()
                if self.on_room is not None:
                    asyncio.get_running_loop().call_soon(self.on_room)
        grant.sent(asyncio.get_running_loop().time())

    def _cut(self, cost: Cost) -> Cost:
        """Reduces a cost to what the limits can grant: a recorded call may have used more."""
        most = self._limiter.most
        input_tokens = min(cost.input_tokens, most("input_tokens"), most("tokens"))
        spare = min(most("output_tokens"), most("tokens") - input_tokens)
        return Cost(int(input_tokens), int(min(cost.output_tokens, spare)))

    async def _answered(self, replayed: Replayed) -> ServerFailed | None:
        """Waits for the end of the call; returns its error, or None if it is answered."""
        service, cost, draws = self._service, replayed.cost, replayed.draws
        is_failure, draw = draws.random() < service.failures, draws.random()
        if is_failure:
            await asyncio.sleep(quantile(service.failed_s, draw))
            return ServerFailed("HTTP 500", status=500)
        cached = cost.input_tokens * self._cache.share(replayed.call.blocks)
        new = cost.input_tokens - cached
        await self._work.done(service.work_s(new, cached, cost.output_tokens, draw))
        return None


def request_of(replayed: Replayed, *, has_text: bool) -> Request:
    """Returns a request for a recorded call.

    has_text: whether the request gets a prompt, which is made from the hashes of the recorded
    prefixes and is about as long as the recorded tokens.
    """
    body: dict[str, object] = {}
    if has_text:
        text = prompt_of(replayed.call)
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    request = Request(body=body)
    request.__dict__["replayed"] = replayed
    return request


def replayed_of(request: Request) -> Replayed:
    found: Replayed = request.__dict__["replayed"]
    return found


def prompt_of(call: CallEnded) -> str:
    """Returns a text that shares prefixes with other texts exactly as the recorded prompt did."""
    parts, begin = list[str](), 0
    for block, end in zip(call.blocks, PREFIX_CHARS, strict=False):
        parts.append(_filled(f"{block:x} ", end - begin))
        begin = end
    # About four characters per token; the rest is unique to this call.
    most = PREFIX_CHARS[len(call.blocks)] - 1 if len(call.blocks) < len(PREFIX_CHARS) else begin
    left = min(most, max(begin, 4 * (call.input_tokens or 0))) - begin
    parts.append(_filled(f"{call.arrived_s} {call.done_s} ", left))
    return "".join(parts)


def _filled(text: str, chars: int) -> str:
    return (text * (chars // len(text) + 1))[:chars]


class _Slots:
    """Runs at most `at_once` pieces of work at once; the others wait in order of arrival.

    take: runs a piece of work, given in seconds.
    """

    def __init__(
        self, at_once: int, take: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._take = take

    async def done(self, work_s: float) -> None:
        async with self._free:
            await self._take(work_s)


class _Shared:
    """Runs pieces of work that slow each other down."""

    def __init__(self, slowdown: float) -> None:
        self._slowdown = slowdown
        self._done_s = 0.0  # the progress of a piece that began at time 0
        self._at_s = 0.0
        self._left: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    async def done(self, work_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._go_on(loop.time())
        over = loop.create_future()
        heapq.heappush(self._left, (self._done_s + work_s, next(self._numbers), over))
        self._set_timer()
        await over

    def _stretch(self) -> float:
        return 1 + self._slowdown * max(0, len(self._left) - 1)

    def _go_on(self, now_s: float) -> None:
        self._done_s += (now_s - self._at_s) / self._stretch()
        self._at_s = now_s

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._left:
            wait_s = max(0.0, self._left[0][0] - self._done_s) * self._stretch()
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._end_first)

    def _end_first(self) -> None:
        self._go_on(asyncio.get_running_loop().time())
        first_s, _, over = heapq.heappop(self._left)
        # At least its own work: rounding errors must not shorten the work of the other pieces.
        self._done_s = max(self._done_s, first_s)
        over.set_result(None)
        self._set_timer()


def _work_of(service: Service) -> _Slots:
    if service.form == "shared":
        return _Slots(service.seen, _Shared(service.slowdown).done)
    return _Slots(service.at_once or service.seen)
