"""Answers that were given before, and requests that are asked once for all who ask them.

  a request that                      is
  may have another answer each time   passed on, unless sampled answers are wanted, too
  was answered before                 a hit: answered from the store, no attempt, no limit
  is being asked by another call      shared: it waits, and has that call's answer
  is none of these                    a miss: asked; a whole success is kept

Equal calls are asked one at a time. If the one that asks fails, is given up, or has no whole
answer, the next of those that wait asks for itself. Each waits by its own deadline.
"""

from __future__ import annotations

import asyncio
import math
from typing import Literal, NamedTuple, Protocol

import msgspec

from redline.apis import has_ended
from redline.apis import replies as apis
from redline.calls.cache.key import is_determined, key_of, only_asks
from redline.calls.http import whole_chunk
from redline.clock import SYSTEM, Clock
from redline.errors import CallError, NoEndpoint, TimedOut
from redline.waist import Backend, CacheUse, Call, Load, Outcome, Reply, Request, Sink, failed

_LATE = "raise --row-deadline"
# How an answer ends that is all the model had to say. Others, such as length, content_filter,
# refusal, empty or what a server calls its own breakdowns, are asked again.
_WHOLE = frozenset({"stop", "tool_calls", "function_call", "eos_token", "stop_sequence"})


class Store(Protocol):
    """Keeps bytes by key. Fails by forgetting, never by raising."""

    notes: list[str]

    def look_up(self, key: bytes) -> asyncio.Future[bytes | None]:
        """The answer stored under `key`; None if there is none."""

    def put(self, key: bytes, value: bytes) -> None:
        """Keeps `value` from now on, as long as there is room. Never waits."""

    async def aclose(self) -> None: ...


class _Kept(msgspec.Struct, array_like=True):
    """An answer as it is stored: read again each time, by the reader of today."""

    body: bytes
    status: int
    request_id: str | None
    endpoint: str
    # By the wall clock; 0 in stores that are older than it.
    at_s: float = 0.0


class _Found(NamedTuple):
    """What those have who waited for a call: its answer, and where it came from."""

    value: bytes
    how: Literal["hit", "shared"]


class _Flight:
    """A call on its way, and those who wait for its answer."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[_Found | None]] = []

    def joined(self) -> asyncio.Future[_Found | None]:
        """The answer once it is there; None if each is to ask for itself."""
        # One future each: a task that is cancelled cancels what it waits for.
        waiter: asyncio.Future[_Found | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return waiter

    def end(self, found: _Found | None) -> None:
        """Passes the answer to the waiting calls, in order of arrival."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(found)


class Cached:
    """A backend that remembers. Outermost: what it answers costs no attempt and no limit.

    identity: of what answers, see key.py. use: counts what was asked. ttl_s: answers that are
    older are asked for again. Streams are answered from the store, too, in one chunk; they are not
    kept and not shared.
    """

    def __init__(
        self,
        inner: Backend,
        store: Store,
        identity: str,
        *,
        includes_sampled: bool = False,
        clock: Clock = SYSTEM,
        use: CacheUse | None = None,
        ttl_s: float = math.inf,
    ) -> None:
        self._inner = inner
        self._ttl_s = ttl_s
        self._store = store
        self._identity = identity
        self._includes_sampled = includes_sampled
        self._clock = clock
        self._use = use or CacheUse()
        self._flights: dict[bytes, _Flight] = {}

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return self._inner.load(now_s, request)

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        key = self._key(request, call)
        if key is None:
            self._use.count("passed")
            return await self._inner.send(request, call, sink)
        try:
            if sink is not None:
                return await self._streamed(key, request, call, sink)
            while (flight := self._flights.get(key)) is not None:
                found = await call.in_time(flight.joined(), self._clock, _LATE)
                if found is not None and (outcome := self._again(request, found.value)) is not None:
                    self._use.count(found.how)
                    return outcome
            return await self._lead(key, request, call)
        except TimedOut as error:
            late = failed(error)
            late.attempts = call.attempts
            return late

    async def aclose(self) -> None:
        try:
            await self._store.aclose()
        finally:
            await self._inner.aclose()

    def _key(self, request: Request, call: Call) -> bytes | None:
        """None if the request is to be asked each time."""
        is_kept = only_asks(request) if self._includes_sampled else is_determined(request)
        return key_of(request, call, self._identity) if is_kept else None

    async def _lead(self, key: bytes, request: Request, call: Call) -> Outcome:
        """Asks, for all who ask the same meanwhile."""
        flight = self._flights[key] = _Flight()
        found: _Found | None = None
        try:
            value = await call.in_time(self._store.look_up(key), self._clock, _LATE)
            if value is not None and (outcome := self._again(request, value)) is not None:
                found = _Found(value, "hit")
                self._use.count("hit")
                return outcome
            self._use.count("miss")
            outcome = await self._inner.send(request, call)
            value = _kept(request, outcome, self._clock.wall_s())
            if value is not None:
                self._store.put(key, value)
                found = _Found(value, "shared")
            return outcome
        finally:
            # However it ended: those who wait continue, and one of them asks.
            del self._flights[key]
            flight.end(found)

    def _again(self, request: Request, value: bytes) -> Outcome | None:
        """The outcome of what is stored; None if it is too old, or cannot be read any more."""
        try:
            kept = _DECODE(value)
            if kept.at_s + self._ttl_s <= self._clock.wall_s():
                return None
            # Read again for each: no caller can change another's answer.
            reply = _read(request, kept.body)
        except (CallError, NoEndpoint, msgspec.DecodeError):
            return None
        reply.status, reply.request_id = kept.status, kept.request_id or reply.request_id
        return Outcome(
            status="succeeded", reply=reply, endpoint=kept.endpoint, attempts=0, is_cached=True
        )

    async def _streamed(self, key: bytes, request: Request, call: Call, sink: Sink) -> Outcome:
        value = await call.in_time(self._store.look_up(key), self._clock, _LATE)
        outcome = None if value is None else self._again(request, value)
        if outcome is None or outcome.reply is None:
            self._use.count("miss")
            return await self._inner.send(request, call, sink)
        self._use.count("hit")
        if isinstance(outcome.output, str):
            call.committed = True
            await sink.begin(outcome.reply.status, {})
            await sink.put(whole_chunk(outcome.reply, outcome.reply.body))
        return outcome


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(_Kept).decode


def _kept(request: Request, outcome: Outcome, at_s: float) -> bytes | None:
    """The outcome as it is stored; None if it is no whole success, or is not to be stored."""
    reply = outcome.reply
    if not outcome.is_success or reply is None or reply.status != 200 or not reply.body:
        return None
    if "no-store" in reply.headers.get("cache-control", "").lower():
        return None
    try:
        read = _read(request, reply.body)
        # An output path passes over how the answer ended.
        ending = apis.read(request.url, reply.body) if request.output_path else read
    except (CallError, NoEndpoint):
        return None
    # What a hit would give is what this call gave, or it is not kept.
    if read.output != reply.output or not _is_whole(ending):
        return None
    return _ENCODE(_Kept(reply.body, reply.status, reply.request_id, outcome.endpoint, at_s))


def _read(request: Request, body: bytes) -> Reply:
    return apis.read(request.url, body, request.output_path, request.body)


def _is_whole(reply: Reply) -> bool:
    """Whether no choice was cut off, filtered or refused."""
    reasons = reply.finish_reasons
    if any(reason is not None and reason not in _WHOLE for reason in reasons):
        return False
    return has_ended(reply.body)
