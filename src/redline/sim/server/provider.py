"""Answers requests, all in the same steps.

Read -> jitter -> key -> draft of the reply -> room in the queue -> the key's rate limits -> fault
drawn -> slot -> latency -> reply. A request that is refused before the rate limits costs nothing.
An admitted request is charged, and may then meet a fault: providers charge for failed requests,
too. If answers are charged when they end, a request whose client leaves earlier costs only its
prompt.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from random import Random
from typing import Annotated, Any

import msgspec

from redline.apis import DONE_EVENT
from redline.clock import Clock
from redline.errors import ConfigError
from redline.httpserver import JSON, BodyError, Exchange, header_lines
from redline.limits.rule import parse_rate
from redline.sim.accounts import Accounts
from redline.sim.admission import Admission, Charge, Rejection
from redline.sim.answers import (
    ENDPOINTS,
    Answers,
    BadCall,
    Draft,
    Stories,
    decode,
    load_replay,
)
from redline.sim.batches import BatchDoor, bad_body, read_body, refusal
from redline.sim.faults import parse_faults
from redline.sim.headers import limit_headers, retry_details, retry_headers
from redline.sim.latency import Constant, parse_latency
from redline.sim.settings import SimSettings
from redline.sim.slots import Slots
from redline.sim.stats import Stats, Ticket
from redline.sim.wire import (
    MAX_STALL_S,
    NOT_JSON,
    Reply,
    StreamEvent,
    error_reply,
    json_reply,
    request_id,
    send,
    send_events,
    send_first_half,
    send_half_events,
)


def _over(message: str, kind: str, headers: Mapping[str, str] = {}) -> Reply:
    """Returns the reply to a request over a limit of this kind."""
    return error_reply(429, message, kind, code="rate_limit_exceeded", headers=headers)


# These faults need no model, so they are sent at once.
_AT_THE_DOOR = {
    "429": _over("Too many requests (injected fault).", "requests"),
    "503": error_reply(503, "The service is overloaded (injected fault).", "service_unavailable"),
}
_FULL = error_reply(503, "The queue is full.", "service_unavailable", code="overloaded")
# These faults replace the answer.
_AFTER = {
    "500": error_reply(500, "The server had an error (injected fault).", "server_error"),
    "notjson": NOT_JSON,
}
_STREAM_FIELDS = header_lines(
    {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
)
# The longest time for which a key can be parked.
MAX_PARK_S = 86_400.0


class _NewLimits(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /sim/limits. An omitted kind keeps its limits."""

    requests: list[str] | None = None
    tokens: list[str] | None = None
    input_tokens: list[str] | None = None
    output_tokens: list[str] | None = None


class _NewFaults(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /sim/faults. An omitted setting does not change.

    park_s: the seconds for which requests with the same key as this request are refused.
    """

    faults: list[str] | None = None
    latency: str | None = None
    park_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_PARK_S)] | None = None


_NEW_LIMITS = msgspec.json.Decoder(_NewLimits)
_NEW_FAULTS = msgspec.json.Decoder(_NewFaults)


class Provider:
    """Answers requests according to the settings, and counts their outcomes."""

    def __init__(self, settings: SimSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._answers = Answers(
            load_replay(settings.replay) if settings.replay else None,
            Stories(settings.near_duplicates, settings.seed) if settings.stories else None,
        )
        self._accounts = Accounts(settings.rates, settings.algorithm)
        # Separate generators, so that drawing faults does not change the latencies of a seed.
        self._jitter_rng = Random(f"{settings.seed} jitter")
        self._latency_rng = Random(f"{settings.seed} latency")
        self._fault_rng = Random(f"{settings.seed} fault")
        self._slots = Slots(settings.concurrency)
        self._is_immediate = _is_immediate(settings)
        self._has_parked = False
        self.stats = Stats()
        self.batches = BatchDoor(settings, self._answers, clock, self.refuse_key)

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a slot."""
        return self._slots.waiting

    def serve(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Answers one request, which ends in exactly one class of the statistics.

        Answers at once and returns None if no step can take time. Otherwise returns a coroutine
        that answers, to be cancelled if the client leaves.
        """
        if not self._is_immediate or not exchange.is_complete:
            return self._serve(exchange, None)
        raw = exchange.received()
        draft = self._draft(exchange, raw)
        if not isinstance(draft, BadCall) and draft.is_stream and draft.is_long:
            # The coroutine waits while the client reads.
            return self._serve(exchange, raw)
        ticket = self.stats.receive(self._clock.now_s())
        try:
            if (admitted := self._admitted(exchange, ticket, draft)) is not None:
                self.stats.serve_at_once()
                self._charge_answer(exchange, admitted)
                self._answer(exchange, ticket, admitted)
        finally:
            if not ticket.outcome:
                self.stats.settle(ticket, "abandoned", None, self._clock.now_s())
        return None

    def refuse_key(self, exchange: Exchange) -> None:
        """Raises BadCall with status 401 if a required key is missing or wrong."""
        key = self._settings.api_key
        if key is not None and exchange.headers.get("authorization") != f"Bearer {key}":
            raise BadCall("Incorrect API key provided.", status=401, code="invalid_api_key")

    async def _serve(self, exchange: Exchange, raw: bytes | None) -> None:
        """Answers one request. raw: the body; None if it has not been read yet."""
        ticket = self.stats.receive(self._clock.now_s())
        try:
            if raw is None:
                raw = await exchange.body()
            if self._settings.jitter_s:
                await asyncio.sleep(self._jitter_rng.uniform(0, self._settings.jitter_s))
            ticket.arrival_s = self._clock.now_s()
            draft = self._admitted(exchange, ticket, self._draft(exchange, raw))
            if draft is None:
                return
            fault = self._settings.faults.draw(self._fault_rng)
            first_s = self._settings.latency.draw_s(self._latency_rng)
            if fault in _AT_THE_DOOR:
                self._reply(exchange, ticket, _AT_THE_DOOR[fault], "faults", fault)
                return
            ticket.latency_s = first_s + self._settings.per_token_s * draft.completion_tokens
            await self._slots.acquire()
            self.stats.begin_serving()
            try:
                await self._perform(exchange, ticket, draft, first_s, fault)
            finally:
                self.stats.end_serving()
                self._slots.release()
        except BodyError as error:
            self._reply(exchange, ticket, refusal(bad_body(error)), "refused")
        finally:
            self.stats.settle(ticket, "abandoned", None, self._clock.now_s())

    def _admitted(self, exchange: Exchange, ticket: Ticket, draft: Draft | BadCall) -> Draft | None:
        """Returns the draft of an admitted request; refuses any other request and returns None."""
        if isinstance(draft, BadCall):
            self._reply(exchange, ticket, refusal(draft), "refused")
            return None
        if self._slots.is_full:
            self._reply(exchange, ticket, _FULL, "overloaded")
            return None
        if self._accounts.has_limits or self._has_parked:
            account, now_s = self._account(exchange), ticket.arrival_s
            if now_s < account.parked_until_s:
                wait_s = account.parked_until_s - now_s
                message = f"This key must wait. Please try again in {wait_s:.3f}s."
                wait = self._over(message, "requests", wait_s, {})
                self._reply(exchange, ticket, wait, "rejected", "parked")
                return None
            if (rejection := account.ask(self._charge(draft), now_s)) is not None:
                over = self._rejected(rejection, account, now_s)
                self._reply(exchange, ticket, over, "rejected", rejection.limit)
                return None
        return draft

    def _account(self, exchange: Exchange) -> Admission:
        return self._accounts.of(exchange.headers.get("authorization", ""))

    async def _perform(
        self, exchange: Exchange, ticket: Ticket, draft: Draft, first_s: float, fault: str | None
    ) -> None:
        """Answers a request that holds a slot. first_s: the latency without tokens, in seconds."""
        if fault == "stall":
            try:
                await asyncio.sleep(MAX_STALL_S)
            finally:
                self._settle_fault(ticket, fault, None)
            exchange.close()
            return
        wait_s = first_s if draft.is_stream else ticket.latency_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        if fault is not None or not draft.is_stream:
            self._charge_answer(exchange, draft)
        if fault == "half":
            await self._half(exchange, ticket, draft)
        elif fault in _AFTER:
            self._reply(exchange, ticket, _AFTER[fault], "faults", fault)
        elif fault is not None:
            self._settle_fault(ticket, fault, None)
            exchange.reset()
        elif draft.is_stream:
            await self._stream(exchange, ticket, draft)
        else:
            self._answer(exchange, ticket, draft)

    def _draft(self, exchange: Exchange, raw: bytes) -> Draft | BadCall:
        """Returns the draft of the answer, or the reason why there is none."""
        path, method = exchange.path, exchange.method
        try:
            self.refuse_key(exchange)
            if path not in ENDPOINTS:
                return BadCall(f"Unknown URL: {method} {path}", status=404, code="unknown_url")
            if method != "POST":
                return BadCall(f"{path} takes POST, not {method}.", status=405)
            return ENDPOINTS[path](raw, self._answers)
        except BadCall as error:
            return error

    def _charge(self, draft: Draft) -> Charge:
        """Returns the amounts that the request is charged on arrival."""
        if self._settings.charge == "actual":
            return Charge(draft.prompt_tokens, draft.completion_tokens)
        if self._settings.charge == "answered":
            return Charge(draft.prompt_tokens)
        return Charge(draft.prompt_tokens, draft.most_tokens)

    def _charge_answer(self, exchange: Exchange, draft: Draft) -> None:
        if self._settings.charge == "answered":
            answer = Charge(output_tokens=draft.completion_tokens, requests=0)
            self._account(exchange).count(answer, self._clock.now_s())

    async def answer_limits(self, exchange: Exchange) -> None:
        """Answers a request that shows or changes the limits; not counted as received."""
        await self._answer_page(exchange, self._change_limits, self._shown_limits)

    async def answer_faults(self, exchange: Exchange) -> None:
        """Answers a request that shows or changes faults and latency; not counted as received."""
        await self._answer_page(exchange, self._change_faults, self._shown_faults)

    async def _answer_page(
        self,
        exchange: Exchange,
        change: Callable[[Exchange, bytes], None],
        shown: Callable[[], object],
    ) -> None:
        """Changes settings if the request is a POST, then shows them."""
        method = exchange.method
        try:
            self.refuse_key(exchange)
            if method == "POST":
                change(exchange, await read_body(exchange))
            elif method not in ("GET", "HEAD"):
                raise BadCall(f"{exchange.path} takes GET and POST, not {method}.", status=405)
            reply = json_reply(shown())
        except ConfigError as error:
            reply = refusal(BadCall(f"{error.what}: {error.hint}" if error.hint else error.what))
        except BadCall as error:
            reply = refusal(error)
        send(exchange, reply)

    def _change_limits(self, exchange: Exchange, raw: bytes) -> None:
        stated = msgspec.structs.asdict(decode(_NEW_LIMITS, raw))
        rates = {
            name.replace("_", "-"): [parse_rate(text, name) for text in texts]
            for name, texts in stated.items()
            if texts is not None
        }
        self._accounts.change(rates, self._clock.now_s())

    def _shown_limits(self) -> dict[str, list[str]]:
        limits = self._accounts.rates.items()
        return {what.replace("-", "_"): [str(rate) for rate in rates] for what, rates in limits}

    def _change_faults(self, exchange: Exchange, raw: bytes) -> None:
        body = decode(_NEW_FAULTS, raw)
        old = self._settings
        self._settings = msgspec.structs.replace(
            old,
            faults=old.faults if body.faults is None else parse_faults(body.faults),
            latency=old.latency if body.latency is None else parse_latency(body.latency),
        )
        self._is_immediate = _is_immediate(self._settings)
        self.batches.disturb(self._settings.faults)
        if body.park_s is not None:
            self._has_parked = True
            self._account(exchange).park(self._clock.now_s() + body.park_s)

    def _shown_faults(self) -> dict[str, object]:
        faults = {kind: share for kind, share in self._settings.faults.shares if share}
        return {"faults": faults, "latency": str(self._settings.latency)}

    def _rejected(self, rejection: Rejection, account: Admission, now_s: float) -> Reply:
        rate = rejection.rate
        asked = (
            f"{rejection.what} per {rate.window_s:g} s: Limit {rate.count}, "
            f"Used {rejection.used}, Requested {rejection.asked}."
        )
        if math.isinf(rejection.wait_s):
            message = f"Request too large on {asked} It can never be admitted; make it smaller."
        else:
            message = f"Rate limit reached on {asked} Please try again in {rejection.wait_s:.3f}s."
        limits = self._limit_headers(account, now_s)
        return self._over(message, rejection.what, rejection.wait_s, limits)

    def _over(self, message: str, kind: str, wait_s: float, headers: Mapping[str, str]) -> Reply:
        """Returns the reply to a request over a limit, with the wait in the style of `headers`."""
        style = self._settings.headers
        headers = {**headers, **retry_headers(style, wait_s)}
        if details := retry_details(style, wait_s):
            status = "RESOURCE_EXHAUSTED"
            error = {"code": 429, "message": message, "status": status, "details": details}
            body = msgspec.json.encode({"error": error})
            return Reply(429, body, JSON + header_lines(headers))
        return _over(message, kind, headers)

    def _limit_headers(self, account: Admission, now_s: float) -> dict[str, str]:
        style = self._settings.headers
        readings = account.readings(now_s)
        if style != "anthropic":
            # Only Anthropic's headers have separate names for input and output.
            readings = [each for each in readings if each.what in ("requests", "tokens")]
        return limit_headers(style, readings, self._clock.wall_s())

    def _reply(
        self,
        exchange: Exchange,
        ticket: Ticket,
        reply: Reply,
        outcome: str,
        detail: str = "",
    ) -> None:
        if exchange.is_gone:
            return
        # Settled just before the reply is written: once the client has it, the request is not in
        # flight.
        self.stats.settle(ticket, outcome, reply.status, self._clock.now_s(), detail)
        send(exchange, reply, ticket.number)

    def _whole(self, ticket: Ticket, draft: Draft) -> bytes:
        return msgspec.json.encode(draft.whole(ticket.number, int(self._clock.wall_s())))

    def _fields(self, exchange: Exchange, ticket: Ticket, draft: Draft) -> bytes:
        """Returns the header lines of an answer."""
        fields = (_STREAM_FIELDS if draft.is_stream else JSON) + request_id(ticket.number)
        if self._accounts.has_limits:
            account = self._account(exchange)
            fields += header_lines(self._limit_headers(account, self._clock.now_s()))
        return fields

    def _answer(self, exchange: Exchange, ticket: Ticket, draft: Draft) -> None:
        """Sends the whole answer at once, as one chunk if the request wants a stream."""
        if exchange.is_gone:
            return
        fields = self._fields(exchange, ticket, draft)
        if draft.is_stream:
            body = b"".join([event.data for event in self._events(ticket, draft)]) + DONE_EVENT
            send_whole = exchange.respond_in_one_chunk
        else:
            body, send_whole = self._whole(ticket, draft), exchange.respond
        self._settle_answer(ticket, draft)
        send_whole(200, body, fields)

    def _settle_fault(self, ticket: Ticket, fault: str, status: int | None) -> None:
        self.stats.settle(ticket, "faults", status, self._clock.now_s(), fault)

    async def _half(self, exchange: Exchange, ticket: Ticket, draft: Draft) -> None:
        if exchange.is_gone:
            return
        self._settle_fault(ticket, "half", 200)
        fields = self._fields(exchange, ticket, draft)
        if draft.is_stream:
            await exchange.begin(200, fields)
            await send_half_events(exchange, self._events(ticket, draft))
        else:
            send_first_half(exchange, Reply(200, self._whole(ticket, draft), fields))

    async def _stream(self, exchange: Exchange, ticket: Ticket, draft: Draft) -> None:
        await exchange.begin(200, self._fields(exchange, ticket, draft))
        events = self._events(ticket, draft)
        before_s = 0.0

        def on_text() -> None:
            nonlocal before_s
            now_s = self._clock.now_s()
            self.stats.wrote_text(ticket, before_s, now_s)
            before_s = now_s

        last = await send_events(exchange, events, self._settings.per_token_s, on_text)
        self._charge_answer(exchange, draft)
        if not exchange.is_gone:
            self._settle_answer(ticket, draft)
        await exchange.end(last + DONE_EVENT)

    def _settle_answer(self, ticket: Ticket, draft: Draft) -> None:
        now_s = self._clock.now_s()
        self.stats.answer(ticket, draft.prompt_tokens, draft.completion_tokens, now_s)

    def _events(self, ticket: Ticket, draft: Draft) -> Iterator[StreamEvent]:
        return draft.events(ticket.number, int(self._clock.wall_s()))


def _is_immediate(settings: SimSettings) -> bool:
    """Returns whether no part of a complete answer can take time."""
    return (
        settings.latency == Constant(0.0)
        and not settings.per_token_s
        and not settings.jitter_s
        and not settings.faults.total
        and settings.concurrency is None
    )
