"""Makes an HTTP endpoint a backend: slot, connection, rate grant, write, read, settle."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from redline.apis import PLAIN, api_of, judge
from redline.apis import replies as apis
from redline.calls.http.events import StreamReader, streaming, whole_chunk
from redline.calls.http.limits import EndpointLimits, Shared
from redline.calls.http.masking import Mask, mask_of
from redline.calls.http.models import renamed
from redline.calls.http.outage import Outage, is_unreachable
from redline.calls.http.waiting import NO_MARKS, Wait, wait_of_this_task
from redline.calls.tokens import UNFOLLOWED, Sending, TokenEstimator
from redline.calls.wire import (
    EVENTS,
    LONG_BYTES,
    Alarm,
    Answer,
    Endpoint,
    Exchange,
    Outbox,
    Repeat,
    Timing,
    TooLate,
    Transport,
    do_nothing,
)
from redline.clock import SYSTEM, Clock
from redline.errors import (
    BadReply,
    BadRow,
    BudgetSpent,
    CallError,
    NoEndpoint,
    OverLimit,
    RateLimited,
    Rejected,
    Retryable,
    TimedOut,
    Withdrawn,
)
from redline.events import (
    SILENCE,
    EndpointBack,
    EndpointLost,
    EndpointParked,
    Listener,
    RequestRepeated,
)
from redline.limits import Cost, Grant
from redline.limits.rule import CERTAIN
from redline.process import counted
from redline.structs import mutable
from redline.waist import (
    Attempt,
    Attempts,
    Call,
    Chunk,
    Health,
    Load,
    Outcome,
    Reply,
    Request,
    Sink,
    failed,
)

# Statuses whose Retry-After applies to the whole endpoint and not only to one row.
_PARKING = frozenset({402, 403, 429, 503, 529})
# The end of a response must follow the end of its answer within this time; otherwise, the
# connection is closed.
_LAST_BYTES_S = 1.0
_NOTHING = Cost()
# Statuses with which servers refuse a field that they do not know.
_INVALID = frozenset({400, 422})
_ENCODE = msgspec.json.Encoder().encode


@mutable
class _Attempt(Exchange, kw_only=True, eq=False):
    """One attempt of a call, and the facts that the backend keeps about it.

    is_ahead: whether it has a place among the attempts that get ready and wait for their grants.
    connects_s: when it began to make its connection; None if it uses an idle one.
    cost: the amounts that its grant takes from token limits. sending: what the estimator learns
    from the attempt. in_flight: calls in flight when it was written, including itself. reader: the
    reader of a streamed answer. wait: None until it has to wait.
    """

    backend: HttpBackend
    request: Request
    call: Call
    cost: Cost = _NOTHING
    sending: Sending = UNFOLLOWED
    is_ahead: bool = False
    connects_s: float | None = None
    in_flight: int = 0
    reader: StreamReader | None = None
    wait: Wait | None = None

    def load(self, request: Request) -> None:
        """Prepares a request: its head, its body, and the function called before the write.

        Raises BadRow if the body has no JSON form.
        """
        body = request.raw
        if body is None:
            body = request.body
            if body is not None and type(body) is not bytes:
                try:
                    body = _ENCODE(body)
                except (TypeError, ValueError, RecursionError) as error:
                    raise BadRow(f"the request cannot be written as JSON: {error}") from error
        self.head = self.backend.transport.head(request.method, request.url, request.headers, body)
        self.body = body or b""
        if self.call.on_write is not None:
            self.on_write = self.call.on_write

    def give_back(self) -> None:
        """Returns the grant to the limits, for a request that was not written."""
        if self.grant is not None:
            self.grant.release()

    async def get_ready(self) -> None:
        self.backend.begin_wait(self)
        # It may already have its grant, if its connection was lost afterwards.
        if self.grant is None:
            await self.backend.go_ahead(self)

    def connecting(self) -> None:
        self.connects_s = self.timing.now_s()
        super().connecting()

    async def wait_for_grant(self) -> None:
        now_s = self.timing.now_s()
        self.backend.begin_wait(self).connected_s = now_s
        if self.connects_s is not None:
            self.backend.connected(now_s - self.connects_s)
            self.connects_s = None
        await super().wait_for_grant()
        if self.is_ahead:
            self.backend.leave_ahead(self)

    def may_leave(self) -> bool:
        if self.grant is not None:
            return True
        limiter = self.backend.limiter
        grant = limiter.acquire_now(self.cost)
        if grant is None and self.cost.is_bound:
            self.cost = self.backend.estimate(self)
            grant = limiter.acquire_now(self.cost)
        self.grant = grant
        return grant is not None

    async def acquire(self) -> Grant:
        grant = await self.backend.limiter.acquire(self.cost, self.call.priority)
        assert self.wait is not None
        self.wait.granted_s = self.timing.now_s()
        return grant

    def on_streamed(self, status: int, headers: Mapping[str, str]) -> None:
        if self.reader is not None:
            self.reader.head(status, headers)
            if self.reader.relays:
                self.take_now = self.reader.take_now
                self.chunk_taker = self.reader.chunk_taker

    def answered(self) -> None:
        """Bounds the wait for the end of a response whose answer is complete."""
        assert self.alarm is not None
        self.alarm.ring_at(min(self.deadline_s, self.timing.now_s() + _LAST_BYTES_S))


@mutable
class _TimedAttempt(_Attempt, kw_only=True, eq=False):
    """An attempt under shared limits, whose grants are valid only for a limited time."""

    def may_leave(self) -> bool:
        # The grant may have expired while a new connection was made.
        grant = self.grant
        if grant is not None and grant.until_s < self.timing.now_s():
            self.grant = None
            grant.release()
        return super().may_leave()

    def leave(self, alarm: Alarm) -> None:
        # The disk or other tasks may have delayed the request in the outbox.
        grant = self.grant
        if grant is not None and grant.until_s < self.timing.now_s():
            raise TooLate
        super().leave(alarm)


class HttpBackend:
    """A backend for one endpoint within its limits; each `send` is one attempt.

    shared: the parts shared with other backends; a shared intake must accept the longest answer of
    this endpoint. before_write: called before a request gets its send time and is written, unless
    the outbox is shared. attempts: counts the attempts. on_room: called when the endpoint may take
    more calls.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        shared: Shared | None = None,
        before_write: Callable[[], None] = do_nothing,
        attempts: Attempts | None = None,
        clock: Clock = SYSTEM,
        listener: Listener = SILENCE,
        on_room: Callable[[], None] | None = None,
    ) -> None:
        shared = shared or Shared()
        self.endpoint = endpoint
        self.label = endpoint.label
        # The models that have another name at the endpoint.
        self._models = {asked: own for asked, own in endpoint.models.items() if asked != own}
        self._steering = EndpointLimits(endpoint, clock, shared)
        self.slots = self._steering.slots
        if on_room is not None:
            self.slots.tell(on_room)
        self.ahead, self.connected = self._steering.ahead, self._steering.connected
        self.limiter = self._steering.limiter
        self._attempt_type = _TimedAttempt if self.limiter.is_shared else _Attempt
        self._finds_limits = not self._steering.is_stated
        self._charges_reserved = self._steering.charges_reserved
        self.estimator = TokenEstimator()
        self.clock = clock
        self.timing = Timing(endpoint.timeouts, clock, self.wrote)
        self._attempts = attempts or Attempts()
        self._listener = listener
        self.transport = Transport(
            endpoint,
            clock,
            self.limiter.shook_hands,
            intake=shared.intake,
            outbox=shared.outbox or Outbox(before_write, clock),
        )
        self._outage = Outage()
        self.on_room = on_room
        self._waiting: dict[int, _Attempt] = {}  # attempts that had to wait, by id(call)
        self._tokens_out = 0  # expected tokens of the calls on the wire
        self.mask = mask_of(endpoint, self.transport.proxy)
        self._asks_usage = True  # for streams; False once the endpoint refuses `stream_options`

    def load(self, now_s: float, request: Request | None = None) -> Load:
        limiter, slots, ahead, outage = self.limiter, self.slots, self.ahead, self._outage
        cost, never = _NOTHING, ""
        if request is not None and limiter.counts_tokens:
            try:
                cost = self._cost(request)
            except OverLimit as error:
                never = error.what
        parked_until_s = max(limiter.parked_until_s, outage.again_s)
        room_s = max(limiter.room_s(cost, now_s), parked_until_s - now_s)
        if never:
            room_s = math.inf
        state, binds, steady = Health.READY, never, 0
        if outage.is_down:
            state = Health.GONE if outage.is_over(now_s) else Health.DEGRADED
            binds = "the endpoint is out of reach"
        elif limiter.is_lost:
            state, binds = Health.GONE, "the shared limits are out of reach"
        elif parked_until_s > now_s:
            binds = "the endpoint asked redline to wait"
        elif not slots.is_free:
            binds = f"{counted(slots.count, 'call')} in flight"
        elif room_s > 0 and not never:
            binds = limiter.binds(cost, now_s)
        # Limits that are not shared are parked only by an error, which the caller sees. How many
        # calls a token limit soon admits depends on their sizes.
        is_known = self._steering.is_stated and not (limiter.is_shared or limiter.counts_tokens)
        next_s = self._steering.next_s(now_s)
        if is_known and parked_until_s <= now_s and next_s == -math.inf:
            steady = min(slots.steady, ahead.count)
        return Load(
            state=state,
            in_flight=slots.in_use,
            waiting=slots.waiting + ahead.waiting + limiter.waiting,
            queued=slots.waiting,
            slots=slots.count,
            ahead_free=max(0, ahead.count - ahead.in_use),
            steady=steady,
            room_s=room_s if slots.is_free else max(room_s, math.ulp(0.0)),
            parked_until_s=parked_until_s,
            opens_s=next_s - self._steering.lead_s,
            next_s=limiter.next_s if ahead.in_use else max(limiter.next_s, next_s),
            tokens_out=self._tokens_out,
            binds=binds,
        )

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        answer: Answer | None = None
        reply: Reply | None = None
        failure: CallError | NoEndpoint | None = None
        if self._models:
            request = renamed(request, self._models)
        attempt = self._attempt_type(
            self.timing, call.deadline_s, not call.once, backend=self, request=request, call=call
        )
        try:
            if self._finds_limits:
                self._steering.begin(request.body)
            if self.limiter.counts_tokens:
                self._count_tokens(attempt)
            # The deadline's alarm would fire only after the loop has read its sockets.
            if call.deadline_s != math.inf and call.deadline_s <= self.clock.now_s():
                raise TimedOut("row")
            if not self.slots.take_free():
                await self._wait_for_slot(attempt)
            try:
                if self.limiter.counts_tokens and attempt.cost is _NOTHING:
                    # A token limit was found while the attempt waited.
                    self._count_tokens(attempt)
                if sink is None:
                    attempt.load(request)
                    try:
                        answer = await self.transport.exchange(attempt)
                    except Repeat as repeat:
                        answer = await self._again(repeat, attempt, request)
                    reply = self._read(request, answer, None)
                    if len(answer.body) > LONG_BYTES:
                        call.let_go()
                        # Twice, since the output takes about as much memory as the body.
                        call.held = self.transport.intake.hold(2 * len(answer.body))
                else:
                    reply = await self._streamed(request, attempt, sink)
            finally:
                if attempt.wait is not None:
                    self._end_wait(attempt)
                self.slots.release()
        except asyncio.CancelledError:
            if attempt.wait is None or not attempt.wait.take_cancellation_back():
                raise
            failure = Withdrawn("the call was withdrawn")
        except NoEndpoint as error:
            # Shared limits could not be reached for too long, or a local engine is lost.
            self._mask_of(request).hide(error)
            failure = error
        except CallError as error:
            failure = self._located(error, request)
        finally:
            sent_s = attempt.sent_s
            if sent_s is not None:
                outcome = self._conclude(attempt, sent_s, answer, reply, failure)
            else:
                attempt.give_back()
                outcome = self._unsent(attempt, failure)
        # If there is no outcome, the call was cancelled, and CancelledError is being raised.
        assert outcome is not None
        return outcome

    async def download(
        self, request: Request, call: Call, take: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Passes the body of a response to `take` as it arrives, unparsed.

        Makes one attempt, which waits for its grant but takes no slot. Raises CallError, or
        NoEndpoint if the outage has lasted too long.
        """
        attempt = self._attempt_type(
            self.timing, call.deadline_s, not call.once, backend=self, request=request, call=call
        )
        failure: str | None = "cancelled"
        try:
            attempt.load(request)
            try:
                answer = await self.transport.exchange(attempt, take, kind="")
            except Repeat as repeat:
                answer = await self._again(repeat, attempt, request, take, kind="")
            if answer.status != 200:
                if not self.limiter.is_unlimited:
                    self._steering.heard(answer, attempt.grant, attempt.first_byte_s)
                try:
                    self._read(request, answer, None)
                except BadReply as error:
                    # For callers that accept any success, such as HTTP 204.
                    error.status = answer.status
                    raise
            failure = None
        except CallError as error:
            failure = error.kind
            located = self._located(error, request)
            if located is error:
                raise
            raise located from error
        finally:
            if attempt.wait is not None:
                self._end_wait(attempt)
            attempt.give_back()
            if attempt.sent_s is not None:
                now_s = self.clock.now_s()
                self._attempts.ended(now_s, now_s - attempt.sent_s, failure)

    def found(self) -> list[str]:
        """Returns the limits that searches have found, in words; empty if there are none."""
        return self._steering.found()

    def has_room(self, now_s: float, coming: int = 0) -> bool:
        return (
            self.slots.has_room(coming)
            and self._outage.again_s <= now_s
            and self._steering.has_room(now_s, coming)
        )

    def withdraw(self, call: Call | None = None) -> int:
        waiting = self._waiting
        attempts = list(waiting.values()) if call is None else [waiting.get(id(call))]
        taken = 0
        for attempt in attempts:
            if attempt is None:
                continue
            # If an attempt waits to be written again, it keeps the `sent_s` of its first write, but
            # its call's `sent_s` is None.
            is_written = attempt.sent_s is not None and attempt.call.sent_s is not None
            wait = None if is_written else attempt.wait
            if wait is not None and not wait.is_withdrawn:
                wait.withdraw()
                taken += 1
        return taken

    def begin_wait(self, attempt: _Attempt) -> Wait:
        """Records that an attempt has to wait; from then on, it may be withdrawn."""
        if attempt.wait is None:
            attempt.wait = wait_of_this_task(self.clock.now_s())
            self._waiting[id(attempt.call)] = attempt
        return attempt.wait

    def _end_wait(self, attempt: _Attempt) -> None:
        """Records that an attempt is over or no longer waits."""
        self._waiting.pop(id(attempt.call), None)
        if attempt.is_ahead:
            self.leave_ahead(attempt)

    async def _wait_for_slot(self, attempt: _Attempt) -> None:
        call, wait = attempt.call, self.begin_wait(attempt)
        try:
            await call.in_time(self.slots.acquire(call.priority), self.clock)
        except BaseException:
            self._end_wait(attempt)
            raise
        wait.slot_s = self.clock.now_s()

    def _count_tokens(self, attempt: _Attempt) -> None:
        """Sets the cost of an attempt. Raises OverLimit if the limits could never grant it.

        Called before the attempt waits, and again if token limits are found while it waits.
        """
        most = 0 if self._charges_reserved else self.limiter.easy_tokens
        bound = self.estimator.bound(attempt.request, most) if most else None
        attempt.cost = bound or self._cost(attempt.request)

    async def go_ahead(self, attempt: _Attempt) -> None:
        """Waits until an attempt may get ready for its grant; only a few get ready at once."""
        if attempt.cost is not _NOTHING:
            self._steering.expects(attempt.cost)
        if self.ahead.take_free():
            attempt.is_ahead = True
            return
        call, wait = attempt.call, self.begin_wait(attempt)
        await call.in_time(self.ahead.acquire(call.priority), self.clock)
        attempt.is_ahead = True
        wait.ahead_s = self.clock.now_s()
        if attempt.cost.spread is CERTAIN and self.limiter.counts_tokens:
            # By now, a token limit may have been found, or the model's mean output may be known.
            cost = self._cost(attempt.request)
            if attempt.failed is not None:
                self._tokens_out += cost.tokens - attempt.cost.tokens
            attempt.cost = cost

    def leave_ahead(self, attempt: _Attempt) -> None:
        """Frees the place of an attempt that has its grant or is over, for another attempt."""
        attempt.is_ahead = False
        self.ahead.release()
        if self.on_room is not None and self.ahead.is_free:
            self.on_room()

    def wrote(self, attempt: _Attempt, sent_s: float) -> None:
        """Counts a request that is about to be written."""
        call = attempt.call
        if attempt.failed is not None:
            self._count_repeat(attempt, attempt.failed, sent_s)
        else:
            if call.requests:
                self._count_retry(call)
            cost = attempt.cost
            if cost is not _NOTHING:
                self._tokens_out += cost.input_tokens + cost.output_tokens
                estimator, request = self.estimator, attempt.request
                if not cost.is_bound:
                    attempt.sending = estimator.begin(request)
                elif (sending := estimator.begin_bound(request)) is not UNFOLLOWED:
                    attempt.sending = sending
        if self._finds_limits:
            attempt.in_flight = self.slots.in_use
            self._steering.sent(sent_s)
        call.sent_s = sent_s
        call.requests += 1
        self._attempts.started()

    def _count_retry(self, call: Call) -> None:
        """Counts a retry, and a failover if another endpoint may have billed the request."""
        self._attempts.retried()
        if call.billed_at and call.billed_at != self.label:
            self._attempts.failed_over()
            call.billed_at = ""

    def _count_repeat(self, attempt: _Attempt, failed: CallError, sent_s: float) -> None:
        """Counts the end of a repeated request's first write, so that starts and ends match."""
        self._attempts.ended(sent_s, sent_s - attempt.failed_sent_s, failed.kind)
        self._listener.on_event(RequestRepeated(sent_s, self.label))

    async def aclose(self) -> None:
        self._outage.close()
        self.withdraw()
        await self._steering.aclose()
        await self.transport.aclose()

    def estimate(self, attempt: _Attempt) -> Cost:
        """Returns the estimate that replaces an attempt's bound."""
        cost = self.estimator.estimate(attempt.request)
        if attempt.failed is not None:
            # The attempt is being repeated, and its bound is already counted.
            self._tokens_out += cost.tokens - attempt.cost.tokens
        return cost

    def _cost(self, request: Request) -> Cost:
        """Returns the tokens to reserve, if a limit counts tokens.

        An estimate larger than the limits could ever grant is cut to the largest possible grant,
        and settled later. Raises OverLimit for a request that the limits could never grant.
        """
        limiter, estimator = self.limiter, self.estimator
        cost = estimator.most(request) if self._charges_reserved else estimator.estimate(request)
        try:
            limiter.check(cost)
            return cost
        except OverLimit:
            cost = self._cut(cost, request)
        limiter.check(cost)
        return cost

    def _cut(self, cost: Cost, request: Request) -> Cost:
        """Cuts a cost to what the limits could grant, but not below the request's least input."""
        limiter = self.limiter
        most = limiter.most("tokens")
        input_tokens = cost.input_tokens
        cap = min(limiter.most("input_tokens"), most)
        if input_tokens > cap:
            input_tokens = max(self.estimator.least(request), int(cap))
        spare = min(limiter.most("output_tokens"), max(0, most - input_tokens))
        return Cost(input_tokens, int(min(cost.output_tokens, spare)), cost.spread)

    async def _streamed(self, request: Request, attempt: _Attempt, sink: Sink) -> Reply:
        """Makes an exchange and passes its chunks to `sink` as they arrive; returns the reply."""
        mask = self._mask_of(request)
        # The request determines how many texts to expect; a sink that relays expects none.
        asked = None if sink.relays else request.body
        reader = StreamReader(sink, attempt.call, asked, mask, self.clock, attempt.answered)
        attempt.reader = reader
        streamed = streaming(request, asks_usage=self._asks_usage)
        attempt.load(streamed)
        try:
            answer = await self.transport.exchange(attempt, reader.take)
        except Repeat as repeat:
            answer = await self._again(repeat, attempt, streamed, reader.take)
        except CallError:
            if not reader.is_done:
                raise
            # The answer is complete: only the end of the response is missing.
            answer = reader.answer
        if answer.status in _INVALID and b"stream_options" in answer.body:
            bare = streaming(request, asks_usage=False)
            if bare != streamed:
                refusal = Repeat(Rejected("`stream_options` is refused", status=answer.status))
                # A refused request costs nothing.
                attempt.call.refused += 1
                answer = await self._again(refusal, attempt, bare, reader.take)
                # The first response may have been about something else.
                self._asks_usage = self._asks_usage and answer.status != 200
        # The sink may take long, so the limits in this response are recorded first.
        if not self.limiter.is_unlimited:
            self._steering.heard(answer, attempt.grant, attempt.first_byte_s)
        reply = self._read(request, answer, reader)
        if reader.has_begun:
            await reader.end()
        elif sink.relays:
            await sink.begin(answer.status, answer.headers)
            await sink.put(Chunk("", None, answer.body))
        else:
            # The server does not stream: its whole answer is one chunk.
            chunk = whole_chunk(reply, answer.body)
            await sink.begin(answer.status, answer.headers)
            await sink.put(chunk)
        return reply

    async def _again(
        self,
        repeat: Repeat,
        attempt: _Attempt,
        request: Request,
        take: Callable[[bytes], Awaitable[None]] | None = None,
        kind: str = EVENTS,
    ) -> Answer:
        """Sends the request once more, on a new connection, and returns the response.

        The second write waits for the limits like any other. It does not count as a retry, since
        the row is not to blame.
        """
        attempt.again(repeat)
        # Until it is written again, the call is not on the wire: a drain ends it like other calls
        # that wait.
        attempt.call.sent_s = None
        if attempt.call.deadline_s <= self.clock.now_s():
            raise TimedOut("row")
        attempt.load(request)
        try:
            return await self.transport.exchange(attempt, take, kind)
        except BudgetSpent:
            # Calls in flight hold the rest of the budget: a retry waits for them, or ends the run.
            raise repeat.error from None
        finally:
            # Only has an effect if the request was not written again.
            attempt.give_back()

    def _read(self, request: Request, answer: Answer, reader: StreamReader | None) -> Reply:
        """Reads a response as a reply. Raises the error that the response is or contains."""
        status, headers = answer.status, answer.headers
        if status != 200 and not 200 <= status < 300:
            self.transport.check(answer)
            # Mask before a long message is cut: cutting could leave a part of a key unmasked.
            mask = self._mask_of(request)
            body = mask.body(answer.body)
            error = judge(status, headers, body, self.clock.wall_s())
            if isinstance(error, CallError):
                error.keep_body(mask.whole(answer.body, body))
            raise error
        reply: Reply | None
        if reader is not None and reader.has_begun:
            reply = reader.finish()
            reply.headers = headers
        else:
            try:
                reply = apis.read(
                    request.url, answer.body, request.output_path, request.asked, headers
                )
            except (CallError, NoEndpoint):
                reply = None
            if reply is None:
                reply = self._read_faulty(request, answer)
        reply.status = status
        if "x-request-id" in headers:
            reply.request_id = headers["x-request-id"] or reply.request_id
        return reply

    def _read_faulty(self, request: Request, answer: Answer) -> Reply:
        """Reads a response again, with secrets masked. Raises the error that it is or contains."""
        url, path, asked, headers = request.url, request.output_path, request.asked, answer.headers
        is_done = answer.status == 204 and request.method != "POST"
        if (is_done or request.method == "HEAD") and api_of(url) is PLAIN and not path:
            return Reply(headers=headers)
        wall_s = self.clock.wall_s()
        # A request with headers of its own needs a mask of its own.
        return self._mask_of(request).read(
            answer.body, lambda body: apis.read(url, body, path, asked, headers, wall_s)
        )

    def _located(self, error: CallError, request: Request) -> CallError | NoEndpoint:
        """Returns the error with its endpoint; NoEndpoint if the outage has lasted too long."""
        now_s = self.clock.now_s()
        _forget_frames(error)
        error.where = error.where or f"endpoint {self.label}"
        self._mask_of(request).hide(error)
        if not is_unreachable(error):
            return error
        if self._outage.refused(now_s):
            self._listener.on_event(EndpointLost(now_s, self.label, error.what))
        if self._outage.is_over(now_s):
            lasted_s = self._outage.lasted_s(now_s)
            long = f"the endpoint has not been reachable for {lasted_s:.0f} s: "
            lost = NoEndpoint(
                error.what if self._outage.is_closed else long + error.what,
                where=error.where,
                hint=error.hint or "check the base URL and the network, then try again",
            )
            lost.__cause__ = error
            return lost
        return error

    def _mask_of(self, request: Request) -> Mask:
        """Returns the mask for a call's secrets: some servers quote the key that they refuse."""
        if not request.headers:
            return self.mask
        return mask_of(self.endpoint, self.transport.proxy, request.headers)

    def _failed(self, error: CallError | NoEndpoint, latency_s: float = 0.0) -> Outcome:
        """Returns the outcome of an attempt that failed, without its record."""
        outcome = failed(error, endpoint=self.label, latency_s=latency_s)
        if isinstance(error, Withdrawn):
            outcome.attempts = 0
        return outcome

    def _unsent(self, attempt: _Attempt, error: CallError | NoEndpoint | None) -> Outcome | None:
        """Returns the outcome of an attempt that was not written; None if it was cancelled."""
        if error is None:
            return None
        outcome = self._failed(error)
        if not isinstance(error, Withdrawn):
            outcome.tried = (self._tried(attempt, error, self.clock.now_s()),)
        return outcome

    def _conclude(
        self,
        attempt: _Attempt,
        sent_s: float,
        answer: Answer | None,
        reply: Reply | None,
        error: CallError | NoEndpoint | None,
    ) -> Outcome | None:
        """Counts a written attempt, reports it to the limits, and parks the endpoint if needed.

        Returns the attempt's outcome; None if it was cancelled and so has neither reply nor error.
        sent_s: when it was written. answer: its response, unless the limits have recorded it.
        """
        attempt.call.sent_s = None
        now_s = self.clock.now_s()
        latency_s = now_s - sent_s
        limiter = self.limiter
        if not limiter.is_unlimited:
            used = self._used(attempt, reply, latency_s) if attempt.cost is not _NOTHING else None
            if answer is not None:
                self._steering.heard(answer, attempt.grant, attempt.first_byte_s, used)
            elif used is not None and attempt.grant is not None:
                attempt.grant.settle(used)
            if isinstance(error, RateLimited) and not limiter.fits(attempt.cost):
                # The call was sent though headers, perhaps for another model, had lowered a limit.
                # The server enforces it, so each retry would wait in vain for an empty window.
                error = OverLimit(
                    f"the call exceeds a limit that the endpoint states: {error.what}",
                    where=error.where,
                    hint="shorten the prompt, lower max_tokens, or have the limit raised",
                    status=error.status,
                )
        if reply is None and error is None:
            if attempt.first_byte_s is None:
                attempt.call.silent_s = sent_s
            self._attempts.ended(now_s, latency_s, "cancelled")
            return None
        if attempt.wait is None and attempt.reader is None and attempt.due_s is None:
            tried = Attempt(self.label, error, sent_s, attempt.first_byte_s, now_s)
        else:
            tried = self._tried(attempt, error, now_s)
        if error is None:
            outcome = Outcome(
                status="succeeded",
                reply=reply,
                endpoint=self.label,
                tried=(tried,),
                latency_s=latency_s,
            )
        else:
            outcome = self._failed(error, latency_s)
            outcome.tried = (tried,)
        if not self._outage.is_up:
            self._came_back(attempt, error, now_s)
        must_tell = error is not None or self._finds_limits
        if must_tell or not (limiter.is_unlimited or limiter.accepted(now_s)):
            self._steering.ended(outcome, sent_s, attempt.in_flight, now_s)
        if reply is not None:
            self._attempts.ended(
                now_s, latency_s, None, reply.input_tokens or 0, reply.output_tokens or 0
            )
        elif error is not None:
            self._count_failure(attempt, error, now_s, latency_s)
        return outcome

    def _came_back(
        self, attempt: _Attempt, error: CallError | NoEndpoint | None, now_s: float
    ) -> None:
        """Records that the endpoint can be reached, unless `error` says that it cannot.

        A request that was written and then repeated may have found no server the second time. A
        response that reports a lost engine shows that the endpoint can be reached, although its
        error is NoEndpoint. A request that timed out without a byte may have been written before
        the server went away. A withdrawn request got no response to its last write.
        """
        is_silent = isinstance(error, TimedOut | Withdrawn) and attempt.first_byte_s is None
        if is_silent or is_unreachable(error.__cause__ if isinstance(error, NoEndpoint) else error):
            return
        if self._outage.answered():
            self._listener.on_event(EndpointBack(now_s, self.label))
            if self.on_room is not None:
                self.on_room()

    def _count_failure(
        self, attempt: _Attempt, error: CallError | NoEndpoint, now_s: float, latency_s: float
    ) -> None:
        """Counts a failed attempt, and parks the endpoint if a Retry-After applies to it."""
        if isinstance(error, Withdrawn) and attempt.failed is not None:
            # The request was written once, and that write ended with `attempt.failed`.
            error = attempt.failed
        self._attempts.ended(now_s, latency_s, error.kind)
        if isinstance(error, BadReply) and error.status is None:
            # Unless its connection is closed, it became idle last. The request's own answer may
            # still be on the way there.
            self.transport.close_latest()
        if attempt.failed is not None or _may_be_billed(error):
            attempt.call.billed_at = self.label
        if isinstance(error, Retryable) and error.retry_after_s and error.status in _PARKING:
            is_news = self.limiter.park(now_s + error.retry_after_s)
            if is_news:
                self._listener.on_event(EndpointParked(now_s, self.label, error.retry_after_s))

    def _used(self, attempt: _Attempt, reply: Reply | None, took_s: float) -> Cost | None:
        """Passes a finished attempt to the estimator, and returns its tokens; None if unknown.

        reply: None for an attempt that failed.
        """
        cost, sending = attempt.cost, attempt.sending
        self._tokens_out -= cost.input_tokens + cost.output_tokens
        if reply is None:
            self.estimator.end(sending, None, took_s)
            return None
        input_tokens, output_tokens = reply.input_tokens or 0, reply.output_tokens or 0
        if sending is UNFOLLOWED and not 0 < input_tokens <= cost.input_tokens:
            # The reply's usage exceeds the bound, or is not reported.
            sending = self.estimator.begin(attempt.request, teaches=True)
        if sending is not UNFOLLOWED:
            self.estimator.end(sending, reply, took_s)
        if input_tokens <= 0 and output_tokens <= 0:
            return None
        if self._charges_reserved:
            # Reserved tokens are not refunded; only tokens beyond the estimate are added.
            input_tokens = max(input_tokens, cost.input_tokens)
            output_tokens = max(output_tokens, cost.output_tokens)
        return Cost(input_tokens, output_tokens)

    def _tried(
        self, attempt: _Attempt, error: CallError | NoEndpoint | None, now_s: float
    ) -> Attempt:
        """Returns the record of an attempt that had to wait, was streamed or was not sent."""
        reader, wait = attempt.reader, attempt.wait
        marks = NO_MARKS if wait is None else wait.marks
        if attempt.due_s is not None and wait is None:
            # The attempt waited only to be written.
            marks = (attempt.due_s, None, None, None, attempt.due_s)
        first_token_s = None if reader is None else reader.first_s
        sent_s, first_byte_s = attempt.sent_s, attempt.first_byte_s
        return Attempt(self.label, error, sent_s, first_byte_s, now_s, *marks, first_token_s)


def _may_be_billed(error: CallError | NoEndpoint) -> bool:
    """Whether the provider may bill a request that was written and ended with this error.

    Providers do not bill requests that they refuse, with a 429 or another 4xx.
    """
    return isinstance(error, Retryable) and not isinstance(error, RateLimited)


def _forget_frames(error: BaseException) -> None:
    """Drops an error's traceback, whose frames hold the response and the request.

    The error is kept as long as its outcome, whose row may wait to be retried.
    """
    of: BaseException | None = error
    # An error that was raised again may be its own context.
    seen = set[int]()
    while of is not None and id(of) not in seen:
        seen.add(id(of))
        of.__traceback__ = None
        of = of.__cause__ or of.__context__
