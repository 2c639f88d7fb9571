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
    do_nothing,
)
from redline.clock import SYSTEM, Clock
from redline.errors import (
    BadRow,
    BudgetSpent,
    CallError,
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
    cost = _NOTHING

    def __init__(self, backend: HttpBackend, request: Request, call: Call) -> None:
        super().__init__(backend.endpoint.timeouts, backend.clock)
        self._backend = backend
        self.request = request
        self.call = call
        self.may_repeat = not call.once

    def reserve(self, cost: Cost) -> None:
        """What its grant is to take from the limits of tokens."""
        self.cost = cost

    def give_back(self) -> None:
        """Its request was not written: the limits get back what it took."""
        if self.grant is not None:
            self.grant.release()

    async def get_ready(self) -> None:
        # Its connection may have been lost since it had its grant.
        if not self.has_grant:
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
        self._backend.wrote(self, self.call, sent_s)


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
        self._attempts = attempts or Attempts()
        self._listener = listener
        self._transport = transport or Transport(
            endpoint, clock, self._steering.shook_hands, before_write
        )
        self._outage = Outage()
        self.mask = mask_of(endpoint, self._transport.proxy)

    def room(self, cost: Cost, now_s: float) -> float:
        wait_s = max(self._outage.wait_s(now_s), self.limiter.room_s(cost, now_s))
        return wait_s if self.slots.is_free else max(wait_s, math.ulp(0.0))

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        outcome: Outcome | None = None
        attempt = _Attempt(self, request, call)
        try:
            if self._steering.search is not None:
                self._steering.begin(request.body)
            if not self.limiter.is_unlimited and self.limiter.counts_tokens:
                attempt.reserve(self._cost(request))
                # Refused before anything is waited for if no limit could ever grant it.
                self.limiter.check(attempt.cost)
            # Its clock would ring only after the loop has read its sockets.
            if call.deadline_s != math.inf and call.deadline_s <= self.clock.now_s():
                raise TimedOut("row")
            if not self.slots.take_free():
                await call.in_time(self.slots.acquire(call.priority), self.clock)
            try:
                if sink is None:
                    self._load(attempt, request)
                    try:
                        answer = await self._transport.exchange(attempt)
                    except Repeat as repeat:
                        answer = await self._again(repeat, attempt, request)
                    reply = self._read(request, answer, attempt, None)
                    if len(answer.body) > LONG_BYTES:
                        call.let_go()
                        # With the output, which takes about as much.
                        call.held = self._transport.intake.hold(2 * len(answer.body))
                else:
                    reply = await self._streamed(request, attempt, sink)
                outcome = Outcome(status="succeeded", reply=reply, endpoint=self.label)
            finally:
                if attempt.is_ahead:
                    self.leave_ahead(attempt)
                self.slots.release()
        except NoEndpoint as error:
            # Limits that are shared have been out of reach for too long, or a model is lost.
            self._mask_of(request).hide(error)
            outcome = failed(error, endpoint=self.label)
        except CallError as error:
            outcome = failed(self._located(error, request), endpoint=self.label)
        finally:
            if attempt.sent_s is None or attempt.needs_new:
                attempt.give_back()
            if attempt.sent_s is not None:
                self._conclude(request, attempt, attempt.sent_s, outcome)
        return outcome

    async def download(
        self, request: Request, call: Call, take: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """The answer's bytes go to `take` as they come, whatever they are. Raises CallError.

        One attempt, which waits for its grant and for no slot, and is not counted.
        """
        attempt = _Attempt(self, request, call)
        try:
            self._load(attempt, request)
            try:
                answer = await self._transport.exchange(attempt, take, kind="")
            except Repeat as repeat:
                answer = await self._again(repeat, attempt, request, take, kind="")
            if answer.status != 200:
                self._read(request, answer, attempt, None)
        except CallError as error:
            located = self._located(error, request)
            if located is error:
                raise
            raise located from error
        finally:
            if attempt.is_ahead:
                self.leave_ahead(attempt)
            attempt.give_back()

    def keep(self, stores: Stores) -> None:
        """Limits outlive this backend in `stores`, and go on from there. Before the first call."""
        self._steering.keep(stores)

    def found(self) -> list[str]:
        """The limits that were found, in words, where they were to be found."""
        return self._steering.found()

    async def go_ahead(self, attempt: _Attempt) -> None:
        """Returns when an attempt may get ready to wait for its grant: few at once need to."""
        if not self._ahead.take_free():
            call = attempt.call
            await call.in_time(self._ahead.acquire(call.priority), self.clock)
        attempt.is_ahead = True

    def leave_ahead(self, attempt: _Attempt) -> None:
        """An attempt that is ahead has its grant, or is over: another one may get ready."""
        attempt.is_ahead = False
        self._ahead.release()

    def wrote(self, attempt: _Attempt, call: Call, sent_s: float) -> None:
        """The attempt's request is written at sent_s. Raises CallError if it must not be."""
        requests = call.requests
        if call.sent_s is not None:
            self._count_repeat(attempt, sent_s - call.sent_s, sent_s)
            requests = 0
        elif attempt.cost is not _NOTHING:
            attempt.sending = self.estimator.begin(attempt.request)
        attempt.in_flight = self.slots.in_use
        if self._steering.search is not None:
            self._steering.sent(sent_s)
        call.sent_s = sent_s
        call.requests += 1
        self._attempts.started(is_retry=requests > 0)
        if call.on_write is not None:
            call.on_write()

    def _count_repeat(self, attempt: _Attempt, lasted_s: float, sent_s: float) -> None:
        """The first write of a repeated request ends here, so that starts and ends match."""
        assert attempt.failed is not None
        self._attempts.ended(sent_s, lasted_s, attempt.failed.kind)
        self._listener.on_event(RequestRepeated(sent_s, self.label))

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

    async def _streamed(self, request: Request, attempt: _Attempt, sink: Sink) -> Reply:
        """The reply, whose chunks go to `sink` as they come."""
        reader = StreamReader(sink, attempt.call, request.body, self._mask_of(request))
        streamed = streaming(request)
        self._load(attempt, streamed)
        try:
            answer = await self._transport.exchange(attempt, reader.take)
        except Repeat as repeat:
            answer = await self._again(repeat, attempt, streamed, reader.take)
        reply = self._read(request, answer, attempt, reader)
        if not reader.has_begun and isinstance(reply.output, str):
            # The server does not stream: its whole answer is the one chunk.
            await sink.put(Chunk(reply.output, msgspec.json.decode(answer.body)))
        return reply

    async def _again(
        self,
        repeat: Repeat,
        attempt: _Attempt,
        request: Request,
        take: Callable[[bytes], Awaitable[None]] | None = None,
        kind: str = EVENTS,
    ) -> Answer:
        """The answer to a request that is sent once more, on a new connection.

        It waits for the limits as any other, and is no retry: the row has done nothing wrong.
        """
        attempt.again(repeat)
        if attempt.call.deadline_s <= self.clock.now_s():
            raise TimedOut("row")
        self._load(attempt, request)
        try:
            return await self._transport.exchange(attempt, take, kind)
        except BudgetSpent:
            # Calls in flight hold what is left. As a retry it waits for them, or ends the run.
            raise repeat.error from None

    def _load(self, attempt: _Attempt, request: Request) -> None:
        """Gives the attempt its request as bytes. Raises BadRow for one that has no such form."""
        body = request.body if request.raw is None else request.raw
        if body is not None and type(body) is not bytes:
            try:
                body = _ENCODE(body)
            except (TypeError, ValueError, RecursionError) as error:
                raise BadRow(f"the request is not JSON: {error}") from error
        head = self._transport.head(request.method, request.url, request.headers, body)
        attempt.carry(head, body, attempt.call.deadline_s)

    def _read(
        self, request: Request, answer: Answer, attempt: _Attempt, reader: StreamReader | None
    ) -> Reply:
        """The reply of an answer. Raises the error that it is, or holds."""
        status, headers = answer.status, answer.headers
        if not self.limiter.is_unlimited:
            self._heed(answer, attempt)
        if status != 200 and not 200 <= status < 300:
            self._transport.check(answer)
            # Before a long message is cut, which could leave a part of a key in it.
            body = self._mask_of(request).body(answer.body)
            raise judge(status, headers, body, self.clock.wall_s())
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
        if status != 200:
            reply.status = status
        if "x-request-id" in headers:
            reply.request_id = headers["x-request-id"] or reply.request_id
        return reply

    def _heed(self, answer: Answer, attempt: _Attempt) -> None:
        """Reports to the limiter what the answer shows of the limits and of the way."""
        grant, sent_s, first_byte_s = attempt.grant, attempt.sent_s, attempt.first_byte_s
        if grant is not None and sent_s is not None and first_byte_s is not None:
            refusal = answer.body if answer.status == 429 else b""
            self._steering.heard(answer.headers, grant, first_byte_s - sent_s, refusal)

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

    def _conclude(
        self, request: Request, attempt: _Attempt, sent_s: float, outcome: Outcome | None
    ) -> None:
        """Settles the tokens, parks the endpoint if it asked for that, counts the attempt.

        outcome: None for an attempt that was cancelled. sent_s: when it was written.
        """
        attempt.call.sent_s = None
        now_s = self.clock.now_s()
        latency_s = now_s - sent_s
        if attempt.sending is not None:
            answer = None if outcome is None else outcome.reply
            self.estimator.end(attempt.sending, request, answer, latency_s)
        if outcome is None:
            self._attempts.ended(now_s, latency_s, "cancelled")
            return
        outcome.latency_s = latency_s
        if not self._outage.is_up and self._outage.answered():
            self._listener.on_event(EndpointBack(now_s, self.label))
        self._steering.ended(outcome, sent_s, attempt.in_flight, now_s)
        reply, error = outcome.reply, outcome.error
        if reply is not None:
            input_tokens, output_tokens = reply.input_tokens or 0, reply.output_tokens or 0
            self._attempts.ended(now_s, latency_s, None, input_tokens, output_tokens)
            is_stated = input_tokens > 0 or output_tokens > 0
            if attempt.sending is not None and attempt.grant is not None and is_stated:
                self._steering.settle(attempt.grant, Cost(input_tokens, output_tokens))
        elif error is not None:
            self._attempts.ended(now_s, latency_s, error.kind)
            if isinstance(error, Retryable) and error.retry_after_s and error.status in _PARKING:
                is_news = self.limiter.park(now_s + error.retry_after_s)
                if is_news:
                    self._listener.on_event(EndpointParked(now_s, self.label, error.retry_after_s))


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
