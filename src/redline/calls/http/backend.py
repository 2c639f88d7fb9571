"""One HTTP endpoint as a backend: slot, connection, rate grant, write, read, settle."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import msgspec

from redline.apis import judge
from redline.apis import replies as apis
from redline.calls.http.events import StreamReader, streaming
from redline.calls.http.limits import EndpointLimits, Stores
from redline.calls.http.masking import Mask, mask_of
from redline.calls.http.outage import Outage, is_unreachable
from redline.calls.tokens import Sending, TokenEstimator
from redline.calls.wire import (
    EVENTS,
    LONG_BYTES,
    Answer,
    Endpoint,
    Exchange,
    Repeat,
    Transport,
    Wire,
    do_nothing,
)
from redline.clock import SYSTEM, Clock
from redline.errors import (
    BadRow,
    BudgetSpent,
    CallError,
    ConfigError,
    NoEndpoint,
    Retryable,
    TimedOut,
)
from redline.events import (
    SILENCE,
    EndpointBack,
    EndpointLost,
    EndpointParked,
    Listener,
    RequestRepeated,
)
from redline.limits import Cost, Grant, RateLimiter
from redline.waist import Attempts, Call, Chunk, Outcome, Reply, Request, Sink, failed

# Statuses whose Retry-After speaks for the whole endpoint and not for one row.
_PARKING = frozenset({402, 429, 503, 529})
_NOTHING = Cost()
_ENCODE = msgspec.json.Encoder().encode


class _Attempt(Exchange):
    """One attempt of a call, and what is to be learned from it.

    is_ahead: it holds a place among those that wait for their grant with a connection in hand.
    in_flight: calls on the way when this one was written, itself included.
    """

    sending: Sending | None = None
    is_ahead = False
    in_flight = 0

    def __init__(self, backend: HttpBackend, request: Request, cost: Cost, call: Call) -> None:
        super().__init__(backend.endpoint.timeouts, backend.clock, backend.before_write)
        self._backend = backend
        self.request = request
        self.cost = cost
        self.call = call
        self.may_repeat = not call.once

    async def get_ready(self) -> None:
        await self._backend.go_ahead(self)

    def acquire_now(self) -> Grant | None:
        grant = self._backend.limiter.acquire_now(self.cost)
        if self.is_ahead and grant is not None:
            self._backend.leave_ahead(self)
        return grant

    async def acquire(self) -> Grant:
        grant = await self._backend.limiter.acquire(self.cost, self.call.priority)
        if self.is_ahead:
            self._backend.leave_ahead(self)
        return grant

    def on_sent(self, sent_s: float) -> None:
        self._backend.wrote(self, sent_s)


class HttpBackend:
    """Sends to one endpoint within its limits; each `send` is one attempt.

    limiter: of its limits; None opens one. before_write: called before a request is stamped and
    written. attempts: counts them. transport: carries the requests; None makes one.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        limiter: RateLimiter | None = None,
        before_write: Callable[[], None] = do_nothing,
        attempts: Attempts | None = None,
        clock: Clock = SYSTEM,
        listener: Listener = SILENCE,
        transport: Transport | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.label = endpoint.label
        self._steering = EndpointLimits(endpoint, clock, limiter)
        self.slots = self._steering.slots
        self._ahead = self._steering.ahead
        self.limiter = self._steering.limiter
        self.estimator = TokenEstimator()
        self.clock = clock
        self.before_write = before_write
        self._attempts = attempts or Attempts()
        self._listener = listener
        self._transport = transport or Transport(endpoint, clock, self._steering.shook_hands)
        self._outage = Outage()
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if endpoint.api_key:
            self._headers["Authorization"] = f"Bearer {endpoint.api_key}"
        self._headers.update(endpoint.headers)
        self.mask = mask_of(endpoint, self._transport.proxy)

    def room(self, cost: Cost, now_s: float) -> float:
        wait_s = max(self._outage.wait_s(now_s), self.limiter.room_s(cost, now_s))
        return wait_s if self.slots.is_free else max(wait_s, math.ulp(0.0))

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        outcome: Outcome | None = None
        steering = self._steering
        if steering.search is not None:
            steering.begin(request.body)
        cost = self._cost(request) if self.limiter.counts_tokens else _NOTHING
        exchange = _Attempt(self, request, cost, call)
        try:
            # Refused before anything is waited for where no limit could ever grant it.
            if cost is not _NOTHING:
                self.limiter.check(cost)
            # Its clock would ring only after the loop has read its sockets.
            if call.deadline_s != math.inf and call.deadline_s <= self.clock.now_s():
                raise TimedOut("row")
            if not self.slots.take_free():
                await call.in_time(self.slots.acquire(call.priority), self.clock)
            try:
                if sink is None:
                    try:
                        answer = await self._transport.exchange(self._wire(request, call), exchange)
                    except Repeat as repeat:
                        answer = await self._again(repeat, request, exchange)
                    self._heed(answer, exchange)
                    reply = self._read(request, answer, None)
                    if len(answer.body) > LONG_BYTES:
                        call.let_go()
                        # With the output, which takes about as much.
                        call.held = self._transport.intake.hold(2 * len(answer.body))
                else:
                    reply = await self._streamed(request, call, exchange, sink)
                outcome = Outcome(status="succeeded", reply=reply, endpoint=self.label)
            finally:
                if exchange.is_ahead:
                    self.leave_ahead(exchange)
                self.slots.release()
        except NoEndpoint as error:
            # Limits that are shared have been out of reach for too long, or a model is lost.
            self._mask_of(request).hide(error)
            outcome = failed(error, endpoint=self.label)
        except CallError as error:
            outcome = failed(self._located(error, request), endpoint=self.label)
        finally:
            if exchange.grant is not None:
                exchange.grant.release()
            call.sent_s = None
            self._conclude(request, exchange, outcome)
        return outcome

    async def download(
        self, request: Request, call: Call, take: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """The answer's bytes go to `take` as they come, whatever they are. Raises CallError.

        One attempt, which waits for its grant and for no slot, and is not counted.
        """
        exchange = _Attempt(self, request, _NOTHING, call)
        try:
            try:
                wire = self._wire(request, call)
                answer = await self._transport.exchange(wire, exchange, take, kind="")
            except Repeat as repeat:
                answer = await self._again(repeat, request, exchange, take, kind="")
            if answer.status != 200:
                self._read(request, answer, None)
        except CallError as error:
            located = self._located(error, request)
            if located is error:
                raise
            raise located from error
        finally:
            if exchange.is_ahead:
                self.leave_ahead(exchange)
            if (grant := exchange.grant) is not None:
                grant.release()

    def keep(self, stores: Stores) -> None:
        """Limits outlive this backend in `stores`, and go on from there. Before the first call."""
        self._steering.keep(stores)

    def found(self) -> list[str]:
        """The limits that were found, in words, where they were to be found."""
        return self._steering.found()

    async def go_ahead(self, exchange: _Attempt) -> None:
        """Returns when an attempt may get ready to wait for its grant: few at once need to."""
        if not self._ahead.take_free():
            call = exchange.call
            await call.in_time(self._ahead.acquire(call.priority), self.clock)
        exchange.is_ahead = True

    def leave_ahead(self, exchange: _Attempt) -> None:
        """An attempt that is ahead has its grant, or is over: another one may get ready."""
        exchange.is_ahead = False
        self._ahead.release()

    def wrote(self, exchange: _Attempt, sent_s: float) -> None:
        """The attempt's request was written at sent_s."""
        call = exchange.call
        is_retry = call.requests > 0
        if call.sent_s is not None:
            is_retry = False
            # The first write of a repeated request ends here, so that starts and ends match.
            lasted_s = sent_s - call.sent_s
            assert exchange.failed is not None
            self._attempts.ended(sent_s, lasted_s, exchange.failed.kind)
            self._listener.on_event(RequestRepeated(sent_s, self.label))
        elif exchange.cost is not _NOTHING:
            exchange.sending = self.estimator.begin(exchange.request)
        exchange.in_flight = self.slots.in_use
        if self._steering.search is not None:
            self._steering.sent(sent_s)
        call.sent_s = sent_s
        call.requests += 1
        self._attempts.started(is_retry=is_retry)
        if call.on_write is not None:
            call.on_write()

    async def aclose(self) -> None:
        await self._steering.aclose()
        await self._transport.aclose()

    def _cost(self, request: Request) -> Cost:
        """What to reserve, where a limit counts tokens.

        What is learned is a guess: it is cut to what the limits can grant at all, and settled
        later.
        """
        limiter = self.limiter
        is_reserved = self._steering.charges_reserved
        cost = self.estimator.most(request) if is_reserved else self.estimator.estimate(request)
        most = limiter.most("tokens")
        input_tokens = cost.input_tokens
        cap = min(limiter.most("input_tokens"), most)
        if input_tokens > cap:
            input_tokens = max(self.estimator.least(request), int(cap))
        spare = min(limiter.most("output_tokens"), max(0, most - input_tokens))
        return Cost(input_tokens, int(min(cost.output_tokens, spare)), cost.spread)

    async def _streamed(
        self, request: Request, call: Call, exchange: _Attempt, sink: Sink
    ) -> Reply:
        """The reply, whose chunks go to `sink` as they come."""
        reader = StreamReader(sink, call, request.body, self._mask_of(request))
        streamed = streaming(request)
        try:
            wire = self._wire(streamed, call)
            answer = await self._transport.exchange(wire, exchange, reader.take)
        except Repeat as repeat:
            answer = await self._again(repeat, streamed, exchange, reader.take)
        self._heed(answer, exchange)
        reply = self._read(request, answer, reader)
        if not reader.has_begun and isinstance(reply.output, str):
            # The server does not stream: its whole answer is the one chunk.
            await sink.put(Chunk(reply.output, msgspec.json.decode(answer.body)))
        return reply

    async def _again(
        self,
        repeat: Repeat,
        request: Request,
        exchange: _Attempt,
        take: Callable[[bytes], Awaitable[None]] | None = None,
        kind: str = EVENTS,
    ) -> Answer:
        """The answer to a request that is sent once more, on a new connection.

        It waits for the limits as any other, and is no retry: the row has done nothing wrong.
        """
        exchange.again(repeat)
        wire = self._wire(request, exchange.call)
        try:
            return await self._transport.exchange(wire, exchange, take, kind)
        except BudgetSpent:
            # Calls in flight hold what is left. As a retry it waits for them, or ends the run.
            raise repeat.error from None

    def _heed(self, answer: Answer, exchange: _Attempt) -> None:
        """Tells the limiter what the answer shows of the way to the server."""
        if exchange.grant is None or exchange.sent_s is None or exchange.first_byte_s is None:
            return
        took_s = exchange.first_byte_s - exchange.sent_s
        refusal = answer.body if answer.status == 429 else b""
        self._steering.heard(answer.headers, exchange.grant, took_s, refusal)

    def _wire(self, request: Request, call: Call) -> Wire:
        try:
            body = request.body if request.raw is None else request.raw
            if body is not None and type(body) is not bytes:
                body = _ENCODE(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRow(f"the request is not JSON: {error}") from error
        try:
            target = self._transport.target(request.url)
        except ConfigError as error:
            raise BadRow(error.what, hint=error.hint) from error
        headers = self._headers
        if request.headers:
            headers = {**headers, **request.headers}
        return Wire(request.method, target, headers, body, call.deadline_s)

    def _read(self, request: Request, answer: Answer, reader: StreamReader | None) -> Reply:
        if not 200 <= answer.status < 300:
            self._transport.check(answer)
            # Before a long message is cut, which could leave a part of a key in it.
            body = self._mask_of(request).body(answer.body)
            raise judge(answer.status, answer.headers, body, self.clock.wall_s())
        reply: Reply | None
        if reader is not None and reader.has_begun:
            reply = reader.finish()
        else:
            try:
                reply = apis.read(request.url, answer.body, request.output_path, request.asked)
            except (CallError, NoEndpoint):
                reply = None
            if reply is None:
                reply = self._read_faulty(request, answer)
        reply.status = answer.status
        reply.request_id = answer.headers.get("x-request-id") or reply.request_id
        return reply

    def _read_faulty(self, request: Request, answer: Answer) -> Reply:
        """The reply of an answer that cannot be read as it is. Raises the error that it holds."""
        url, path, asked, headers = request.url, request.output_path, request.body, answer.headers
        wall_s = self.clock.wall_s()
        # A request with headers of its own needs a mask of its own.
        return self._mask_of(request).read(
            answer.body, lambda body: apis.read(url, body, path, asked, headers, wall_s)
        )

    def _located(self, error: CallError, request: Request) -> CallError | NoEndpoint:
        """The error with its endpoint named; NoEndpoint when there has been none for too long."""
        now_s = self.clock.now_s()
        _forget_frames(error)
        error.where = error.where or f"endpoint {self.label}"
        self._mask_of(request).hide(error)
        if not is_unreachable(error):
            return error
        if self._outage.refused(now_s):
            self._listener.on_event(EndpointLost(now_s, self.label, error.what))
        if self._outage.is_over(now_s):
            return NoEndpoint(
                f"the endpoint has not been reachable for {self._outage.lasted_s(now_s):.0f} s: "
                f"{error.what}",
                where=error.where,
                hint=error.hint or "check --base-url and the network, then run the command again",
            )
        return error

    def _mask_of(self, request: Request) -> Mask:
        """What hides the secrets of a call: some servers quote the key that they refuse."""
        if not request.headers:
            return self.mask
        return mask_of(self.endpoint, self._transport.proxy, request.headers)

    def _conclude(self, request: Request, exchange: _Attempt, outcome: Outcome | None) -> None:
        """Settles the tokens, parks the endpoint where it asked for that, counts the attempt.

        outcome: None for an attempt that was cancelled.
        """
        if exchange.sent_s is None:
            return
        now_s = self.clock.now_s()
        latency_s = now_s - exchange.sent_s
        if exchange.sending is not None:
            answer = None if outcome is None else outcome.reply
            self.estimator.end(exchange.sending, request, answer, latency_s)
        if outcome is None:
            self._attempts.ended(now_s, latency_s, "cancelled")
            return
        outcome.latency_s = latency_s
        if not self._outage.is_up and self._outage.answered():
            self._listener.on_event(EndpointBack(now_s, self.label))
        self._steering.ended(outcome, exchange.sent_s, exchange.in_flight, now_s)
        reply = outcome.reply
        input_tokens = output_tokens = 0
        if reply is not None:
            input_tokens, output_tokens = reply.input_tokens or 0, reply.output_tokens or 0
            is_stated = input_tokens > 0 or output_tokens > 0
            if exchange.sending is not None and exchange.grant is not None and is_stated:
                self._steering.settle(exchange.grant, Cost(input_tokens, output_tokens))
        error, kind = outcome.error, None
        if error is not None:
            kind = error.kind
            if isinstance(error, Retryable) and error.retry_after_s and error.status in _PARKING:
                is_news = self.limiter.park(now_s + error.retry_after_s)
                if is_news:
                    self._listener.on_event(EndpointParked(now_s, self.label, error.retry_after_s))
        self._attempts.ended(now_s, latency_s, kind, input_tokens, output_tokens)


def _forget_frames(error: BaseException) -> None:
    """Frees what the frames of a failed attempt hold: its answer and its request.

    The error is kept for as long as its outcome is, and its row may wait to be tried again.
    """
    of: BaseException | None = error
    # An error that is raised again may be its own context.
    seen = set[int]()
    while of is not None and id(of) not in seen:
        seen.add(id(of))
        of.__traceback__ = None
        of = of.__cause__ or of.__context__
