"""Caches answers, and lets identical requests in flight share one call (single flight).

  a request that                      is
  may get a new answer each time      passed on, unless sampled answers are also cached
  asks for a stream                   passed on
  is neither a GET nor a POST         passed on
  has a stored answer                 a hit: answered from the store, without an attempt
  is being sent by another call       shared: it waits for that call's answer
  is none of these                    a miss: sent; a complete success is stored, unless the server
                                      answers with `Cache-Control: no-store`

Identical requests of one priority are sent one at a time. If the leading call fails, is cancelled,
or gets no complete answer, the next waiting call sends its own request; if the leading call was not
admitted (see CallError), all waiting calls send theirs at once. No call waits past its own
deadline.
"""

from __future__ import annotations

import asyncio
import math
from typing import Literal, NamedTuple

import msgspec

from redline.apis import has_ended
from redline.apis import replies as apis
from redline.calls.cache.key import is_determined, key_of, only_asks
from redline.calls.cache.store import AnswerStore
from redline.clock import SYSTEM, Clock
from redline.errors import CallError, NoEndpoint, TimedOut, Withdrawn
from redline.waist import (
    MORE_TIME,
    Around,
    Backend,
    CacheUse,
    Call,
    Outcome,
    Reply,
    Request,
    Sink,
    failed,
)

# Finish reasons of a complete answer; Together sends eos, TGI eos_token. Answers with any other
# finish reason, such as length, content_filter, refusal, empty or a server's own word for a
# failure, are not stored.
_WHOLE = frozenset({"stop", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence"})


class _Kept(msgspec.Struct, array_like=True):
    """A stored answer: its body, which is parsed again at each hit."""

    body: bytes
    status: int
    request_id: str | None
    endpoint: str
    # When the answer was stored, by the wall clock; 0 if that was before this field existed.
    at_s: float = 0.0


class _Found(NamedTuple):
    """The result that a call passes to its followers: the answer, and where it came from."""

    value: bytes
    how: Literal["hit", "shared"]


# The answer that the followers of a call in flight wait for; None if one of them must lead next.
_Flight = asyncio.Future[_Found | None]
# The result of a flight if every follower must send its own request.
_NONE_FOR_ALL = _Found(b"", "shared")


class Cached(Around):
    """A backend that caches answers, the outermost: a hit uses no attempt and no endpoint's limit.

    identity: the identity of the endpoints, see key.py. use: counts requests as in this module's
    table. ttl_s: seconds after which a stored answer is no longer used; with 0, stored answers are
    never used, only replaced, and only calls in flight share an answer.
    """

    def __init__(
        self,
        inner: Backend,
        store: AnswerStore,
        identity: str,
        *,
        includes_sampled: bool = False,
        clock: Clock = SYSTEM,
        use: CacheUse | None = None,
        ttl_s: float = math.inf,
    ) -> None:
        super().__init__(inner)
        self._ttl_s = ttl_s
        self._store = store
        self._identity = identity
        self._includes_sampled = includes_sampled
        self._clock = clock
        self._use = use or CacheUse()
        # The key includes the priority, so that no call waits for a less urgent one.
        self._flights: dict[tuple[int, bytes], _Flight] = {}

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        key = self._key(request, call) if sink is None else None
        if key is None:
            return await self._forward("passed", request, call, sink)
        try:
            while (flight := self._flights.get((call.priority, key))) is not None:
                # Shielded: cancelling a task also cancels the future that it waits for.
                found = await call.in_time(asyncio.shield(flight), self._clock, MORE_TIME)
                if found is _NONE_FOR_ALL:
                    # If the followers took turns, each would begin to queue only after the previous
                    # one had failed.
                    return (await self._ask(key, request, call))[0]
                if found is not None and (outcome := _again(request, found.value)) is not None:
                    self._use.count(found.how)
                    return outcome
            return await self._lead(key, request, call)
        except TimedOut as error:
            late = failed(error)
            late.attempts = call.attempts
            return late

    async def renew(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        """Sends the request even if an answer is stored; the new answer replaces it."""
        key = self._key(request, call) if sink is None else None
        if key is None:
            return await self._forward("passed", request, call, sink)
        return (await self._ask(key, request, call))[0]

    async def aclose(self) -> None:
        try:
            await self._store.aclose()
        finally:
            await super().aclose()

    def _key(self, request: Request, call: Call) -> bytes | None:
        """Returns the request's key; None if the request must be sent each time."""
        is_kept = only_asks(request) if self._includes_sampled else is_determined(request)
        return key_of(request, call, self._identity) if is_kept else None

    async def _lead(self, key: bytes, request: Request, call: Call) -> Outcome:
        """Looks up or sends the request, for this call and for those that join it meanwhile."""
        flight: _Flight = asyncio.get_running_loop().create_future()
        self._flights[call.priority, key] = flight
        found: _Found | None = None
        try:
            value = await call.in_time(self._store.look_up(key), self._clock, MORE_TIME)
            if value is not None and (outcome := self._stored(request, value)) is not None:
                found = _Found(value, "hit")
                self._use.count("hit")
                return outcome
            outcome, value = await self._ask(key, request, call)
            if value is not None:
                found = _Found(value, "shared")
            elif isinstance(outcome.error, CallError) and not outcome.error.is_admitted:
                found = _NONE_FOR_ALL
            return outcome
        finally:
            # The followers must always continue; if there is no answer, one of them leads next.
            del self._flights[call.priority, key]
            flight.set_result(found)

    async def _ask(self, key: bytes, request: Request, call: Call) -> tuple[Outcome, bytes | None]:
        """Sends the request; returns the outcome, and its stored form if the answer is stored."""
        outcome = await self._forward("miss", request, call, None)
        value = _kept(request, outcome, self._clock.wall_s())
        if value is not None:
            self._store.put(key, value)
        return outcome, value

    async def _forward(
        self, found: Literal["miss", "passed"], request: Request, call: Call, sink: Sink | None
    ) -> Outcome:
        """Sends the request, and counts it unless its call is withdrawn, to be looked up again."""
        is_withdrawn = False
        try:
            outcome = await self._inner.send(request, call, sink)
            is_withdrawn = isinstance(outcome.error, Withdrawn)
            return outcome
        finally:
            if not is_withdrawn:
                self._use.count(found)

    def _stored(self, request: Request, value: bytes) -> Outcome | None:
        """Returns the outcome of a stored answer; None if it is too old or no longer readable."""
        return _again(request, value, self._clock.wall_s() - self._ttl_s)


def _again(request: Request, value: bytes, after_s: float = -math.inf) -> Outcome | None:
    """Returns a stored answer's outcome; None if unreadable or not stored after `after_s`."""
    try:
        kept = _DECODE(value)
        if kept.at_s <= after_s:
            return None
        # Parsed again for each caller, so that no caller can change the answer of another.
        reply = _read(request, kept.body)
    except (CallError, NoEndpoint, msgspec.DecodeError):
        return None
    reply.status, reply.request_id = kept.status, kept.request_id or reply.request_id
    return Outcome(
        status="succeeded", reply=reply, endpoint=kept.endpoint, attempts=0, is_cached=True
    )


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(_Kept).decode


def _kept(request: Request, outcome: Outcome, at_s: float) -> bytes | None:
    """Returns the stored form of a complete success; None for any other outcome or `no-store`.

    None too if a hit would give another output than this call.
    """
    reply = outcome.reply
    if not outcome.is_success or reply is None or reply.status != 200 or not reply.body:
        return None
    if "no-store" in reply.headers.get("cache-control", "").lower():
        return None
    try:
        read = _read(request, reply.body)
        # Reading by an output path ignores the finish reason.
        ending = apis.read(request.url, reply.body) if request.output_path else read
    except (CallError, NoEndpoint):
        return None
    # Stored only if a hit would give the same output as this call.
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
