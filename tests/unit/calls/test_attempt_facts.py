"""What an attempt at an endpoint leaves behind: records, events, counts and limits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any

import msgspec
import pytest

from redline.calls import (
    Call,
    Chunk,
    Endpoint,
    HttpBackend,
    Reply,
    Request,
    Retry,
    RetryPolicy,
    Sink,
    Timeouts,
)
from redline.calls.http import Shared
from redline.calls.wire import LONG_BYTES, ReplyMemory, do_nothing
from redline.errors import (
    BadReply,
    CallError,
    Disconnected,
    NoEndpoint,
    OverLimit,
    RateLimited,
    TimedOut,
)
from redline.events import EndpointLost, Event, RequestRepeated
from redline.limits import Limits
from redline.testing import VirtualClock, VirtualLoop
from redline.waist import Attempts
from support.raw_server import Handler, RawServer, Seen, answer, chat

LATENCY_S = 1.0
MB = 1 << 20
GET = Request(method="GET", url="/chat", output_path=("text",))


class SlowLoop(VirtualLoop):
    """It may be blocked, and its connections may take long to make."""

    blocked_s = 0.0
    connect_s = 0.0

    def time(self) -> float:
        return super().time() + self.blocked_s

    async def create_connection(self, *given: Any, **named: Any) -> Any:
        await asyncio.sleep(self.connect_s)
        return await super().create_connection(*given, **named)


class Heard:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


class World:
    """A server, its backend, and what the backend counts and reports."""

    def __init__(self, loop: SlowLoop, server: RawServer, settings: dict[str, Any]) -> None:
        self.loop, self.server = loop, server
        self.attempts, self.heard = Attempts(), Heard()
        self.before_write: Callable[[], None] = do_nothing
        self.intake = ReplyMemory(512 * MB)
        self.clock = VirtualClock(loop)
        stated = {"base_url": server.base_url, "proxy": "", **settings}
        if stated["proxy"]:
            stated["proxy"] = f"http://127.0.0.1:{server.port}"
        self.backend = HttpBackend(
            Endpoint(**stated),
            shared=Shared(intake=self.intake),
            before_write=lambda: self.before_write(),
            attempts=self.attempts,
            clock=self.clock,
            listener=self.heard,
        )

    def used(self) -> int:
        """Of its one limit."""
        (line,) = self.backend.limiter.rules.lines
        return line.window.used(self.loop.time())


def play(handle: Handler, story: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    loop = SlowLoop(start_s=1000.0)

    async def main() -> None:
        async with RawServer(handle) as server:
            world = World(loop, server, settings)
            await story(world)
            await world.backend.aclose()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


def ask(text: str = "hello", **fields: Any) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return Request(body={**body, **fields})


async def late(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(LATENCY_S)
    writer.write(answer(chat("yes", usage={"prompt_tokens": 10, "completion_tokens": 5})))


def in_turn(*answers: bytes | None) -> Handler:
    """Writes the answers in turn, the last one again and again; None hangs up instead."""
    left = list(answers)

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        reply = left.pop(0) if len(left) > 1 else left[0]
        if reply is None:
            writer.close()
        else:
            writer.write(reply)

    return handle


FULL = answer({"error": {"message": "full"}}, 429)
BROKEN = answer({"error": {"message": "broken"}}, 500)
YES = answer(chat("yes"))


# What an outcome and a call say.


def test_a_call_is_on_the_wire_until_its_answer_has_come() -> None:
    async def story(world: World) -> None:
        call = Call()
        task = asyncio.create_task(world.backend.send(ask(), call))
        await asyncio.sleep(LATENCY_S / 2)
        assert call.sent_s is not None
        outcome = await task
        assert call.sent_s is None
        assert outcome.latency_s == pytest.approx(LATENCY_S, abs=0.01)
        assert world.attempts.longest_s == outcome.latency_s

    play(late, story)


@pytest.mark.parametrize(
    "reply",
    [answer({"error": "bad"}, 400), answer(b"no JSON"), None],
    ids=["refusal", "no JSON", "no answer"],
)
def test_an_error_keeps_no_frames_which_would_keep_the_request_and_the_answer(
    reply: bytes | None,
) -> None:
    async def story(world: World) -> None:
        error: BaseException | None = (await world.backend.send(ask(), Call())).error
        assert isinstance(error, CallError)
        while error is not None:
            assert error.__traceback__ is None
            error = error.__cause__ or error.__context__

    play(in_turn(reply), story)


def test_an_attempt_that_waited_only_for_a_save_says_how_long() -> None:
    async def story(world: World) -> None:
        assert (await world.backend.send(ask(), Call())).is_success

        def save() -> None:
            world.loop.blocked_s += 2.0

        world.before_write = save
        due_s = world.loop.time()
        (one,) = (await world.backend.send(ask(), Call())).tried
        assert one.eligible_s == one.granted_s == pytest.approx(due_s, abs=0.1)
        assert one.sent_s == pytest.approx(due_s + 2.0, abs=0.1)
        assert one.slot_s is one.connected_s is None

    play(in_turn(YES), story)


def test_a_refusal_over_a_limit_that_was_lowered_names_its_endpoint() -> None:
    async def story(world: World) -> None:
        small = await world.backend.send(Request(body={"prompt": "a", "max_tokens": 1}), Call())
        assert isinstance(small.error, RateLimited)
        large = Request(body={"prompt": "word " * 100, "max_tokens": 1})
        outcome = await world.backend.send(large, Call())
        assert isinstance(outcome.error, OverLimit)
        assert outcome.error.where == "endpoint gpu-2"

    refusal = answer(b"{}", status=429, RateLimit_Policy='"a";q=30;w=1;qu="tokens"')
    play(in_turn(refusal), story, name="gpu-2", limits=Limits(tokens="1000/1s", profile="fixed"))


def test_a_wish_to_wait_may_be_a_date() -> None:
    async def story(world: World) -> None:
        outcome = await world.backend.send(ask(), Call())
        assert isinstance(outcome.error, RateLimited)
        wait_s = outcome.error.retry_after_s
        assert wait_s == pytest.approx(90.0, abs=1.0)
        parked_s = world.backend.load(world.loop.time()).parked_until_s - world.loop.time()
        assert parked_s == pytest.approx(wait_s)

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        wall_s = VirtualClock(asyncio.get_running_loop()).wall_s()
        date = formatdate(wall_s + 90.0, usegmt=True)
        writer.write(answer({"error": {"message": "full"}}, 429, Retry_After=date))

    play(handle, story)


def test_a_download_says_which_success_it_could_not_take() -> None:
    async def take(part: bytes) -> None:
        raise AssertionError(part)

    async def story(world: World) -> None:
        with pytest.raises(BadReply) as caught:
            await world.backend.download(GET, Call(), take)
        assert caught.value.status == 202

    play(in_turn(answer(b"", 202)), story)


# What it sends.


@pytest.mark.parametrize(("asked", "own"), [("fast", "qwen3-8b"), ("slow", "slow"), ("m", "m")])
def test_a_model_is_asked_for_by_the_endpoints_own_name(asked: str, own: str) -> None:
    async def story(world: World) -> None:
        assert (await world.backend.send(ask(model=asked), Call())).is_success
        body = world.server.seen[0].json()
        assert isinstance(body, dict)
        assert body["model"] == own

    play(in_turn(YES), story, models={"fast": "qwen3-8b", "slow": "slow"})


def test_a_stream_is_relayed_however_many_choices_it_has() -> None:
    class Relays(Sink):
        relays = True
        raw = b""

        async def put(self, chunk: Chunk) -> None:
            self.raw += chunk.raw

    async def story(world: World) -> None:
        sink = Relays()
        outcome = await world.backend.send(ask(n=2), Call(), sink)
        assert outcome.is_success
        assert sink.raw == events

    choice = b'{"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"stop"}]}'
    events = b"data: " + choice + b"\n\ndata: [DONE]\n\n"
    play(in_turn(answer(events, content_type="text/event-stream")), story)


# What it counts and reports.


def test_a_repeated_request_is_reported_with_its_endpoint() -> None:
    async def story(world: World) -> None:
        assert (await world.backend.send(ask(), Call())).is_success
        assert world.heard.events == []
        await asyncio.sleep(5.0)
        outcome = await world.backend.send(ask(), Call())
        (event,) = world.heard.events
        assert isinstance(event, RequestRepeated)
        assert (event.at_s, event.endpoint) == (outcome.tried[0].sent_s, "gpu-2")
        assert event.at_s >= 1005.0

    play(in_turn(YES, None, YES), story, name="gpu-2")


@pytest.mark.parametrize(
    ("first", "failovers"), [(BROKEN, 1), (FULL, 0)], ids=["may be billed", "is not billed"]
)
def test_a_retry_is_a_failover_if_another_endpoint_may_bill_the_request(
    first: bytes, failovers: int
) -> None:
    async def story(world: World) -> None:
        async with RawServer(in_turn(YES)) as server:
            other = HttpBackend(
                Endpoint(base_url=server.base_url, proxy=""),
                attempts=world.attempts,
                clock=world.clock,
            )
            call = Call()
            # Once more at the same endpoint, which is no failover.
            for _ in range(2):
                assert not (await world.backend.send(ask(), call)).is_success
                assert world.attempts.failovers == 0
            assert (await other.send(ask(), call)).is_success
            assert (world.attempts.retries, world.attempts.failovers) == (2, failovers)
            # The other one has the request now.
            assert (await other.send(ask(), call)).is_success
            assert (world.attempts.retries, world.attempts.failovers) == (3, failovers)
            await other.aclose()

    play(in_turn(first), story)


def test_a_call_that_is_sent_anew_has_failed_over_from_nowhere() -> None:
    async def story(world: World) -> None:
        retry = Retry(world.backend, RetryPolicy(max_retries=1), clock=world.clock, seed=1)
        call = Call()
        assert not (await retry.send(ask(), call)).is_success
        assert (await retry.send(ask(), call)).is_success
        assert (world.attempts.retries, world.attempts.failovers) == (2, 0)

    play(in_turn(BROKEN, BROKEN, FULL, YES), story)


def test_an_endpoint_that_is_lost_is_reported_once_with_the_time_and_the_reason() -> None:
    async def story(world: World) -> None:
        await world.server.stop()
        await asyncio.sleep(7.0)
        outcome = await world.backend.send(ask(), Call())
        await world.backend.send(ask(), Call())
        assert isinstance(outcome.error, Disconnected)
        (event,) = world.heard.events
        assert isinstance(event, EndpointLost)
        assert (event.endpoint, event.reason) == ("gpu-2", outcome.error.what)
        assert event.at_s == pytest.approx(1007.0, abs=0.1)

    play(in_turn(YES), story, name="gpu-2")


def test_an_endpoint_that_lets_every_connection_time_out_has_its_address_doubted() -> None:
    async def story(world: World) -> None:
        world.loop.connect_s = 10.0
        errors = [(await world.backend.send(ask(), Call())).error for _ in range(3)]
        assert isinstance(errors[0], TimedOut)
        lost = errors[-1]
        assert isinstance(lost, NoEndpoint)
        assert lost.__cause__ is not None
        assert lost.hint.startswith("check the base URL")

    play(in_turn(YES), story, timeouts=Timeouts(connect_s=4.0))


# What it takes from the limits.


@pytest.mark.parametrize(
    ("usage", "used"),
    [
        ({"prompt_tokens": 20, "completion_tokens": 10}, 30),
        ({"prompt_tokens": 20}, 20),
        ({"completion_tokens": 10}, 10),
    ],
)
def test_tokens_are_settled_to_those_that_are_reported(usage: dict[str, int], used: int) -> None:
    async def story(world: World) -> None:
        assert (await world.backend.send(ask(), Call())).is_success
        assert world.used() == used

    reply = answer(chat("yes", usage=usage))
    play(in_turn(reply), story, limits=Limits(tokens="1000/60s", profile="fixed"))


def test_without_usage_an_answer_keeps_what_was_reserved_for_it() -> None:
    async def story(world: World) -> None:
        assert (await world.backend.send(ask(max_tokens=50), Call())).is_success
        assert world.used() > 50

    play(in_turn(YES), story, limits=Limits(tokens="1000/60s", profile="fixed"))


def test_a_provider_that_charges_what_is_reserved_refunds_nothing() -> None:
    async def story(world: World) -> None:
        assert (await world.backend.send(ask(max_tokens=500), Call())).is_success
        assert 500 < world.used() < 600
        # What exceeds the estimate is charged, too.
        assert (await world.backend.send(ask("more", max_tokens=500), Call())).is_success
        assert world.used() > 2500

    usages = [{"prompt_tokens": tokens, "completion_tokens": 5} for tokens in (2, 2000)]
    replies = [answer(chat("yes", usage=usage)) for usage in usages]
    limits = Limits(tokens="5000/60s", profile="fixed", charge="reserved")
    play(in_turn(*replies), story, limits=limits)


def test_a_guess_of_the_output_is_cut_to_what_a_limit_of_outputs_can_grant() -> None:
    async def story(world: World) -> None:
        # Before the first reply more is guessed; a stated maximum is cut as well.
        assert (await world.backend.send(ask(), Call())).is_success
        await asyncio.sleep(60.0)
        assert (await world.backend.send(ask(max_tokens=5000), Call())).is_success

    play(in_turn(YES), story, limits=Limits(output_tokens="100/60s", profile="fixed"))


def test_a_call_whose_bound_does_not_fit_waits_for_its_estimate() -> None:
    def forward(text: str) -> Request:
        return Request(raw=msgspec.json.encode(ask(text).body))

    async def story(world: World) -> None:
        backend = world.backend
        for number in range(300):
            text = "word " * (number % 7 + 1)
            sending = backend.estimator.begin(forward(text))
            used = number % 7 + 9
            reply = Reply(output="yes", input_tokens=used, output_tokens=5)
            backend.estimator.end(sending, reply, 1.0)
        assert backend.estimator.bound(forward("word " * 3), backend.limiter.easy_tokens)
        calls = [backend.send(forward("word " * 3), Call()) for _ in range(3)]
        outcomes = await asyncio.gather(*calls)
        sent_s = [outcome.tried[0].sent_s for outcome in outcomes]
        assert [at_s is not None for at_s in sent_s] == [True] * 3
        assert world.loop.time() > 1000.0 + 20.0
        assert backend.load(world.loop.time()).tokens_out == 0

    play(late, story, limits=Limits(requests="1/10s", tokens="1000000000/60s"))


# When it gets ready.


def test_few_calls_get_ready_if_a_limit_of_tokens_admits_few() -> None:
    async def story(world: World) -> None:
        backend = world.backend
        assert backend.has_room(world.loop.time(), 2)
        calls = [asyncio.create_task(backend.send(ask(max_tokens=300), Call())) for _ in range(3)]
        await asyncio.sleep(LATENCY_S / 2)
        # One is on the wire, one waits for its grant, and one for a place to do so.
        assert len(world.server.seen) == 1
        assert backend.load(world.loop.time()).ahead_free == 0
        assert not backend.has_room(world.loop.time())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    play(late, story, limits=Limits(tokens="500/60s", profile="fixed"))


def test_of_calls_that_wait_for_a_place_the_most_urgent_gets_ready_first() -> None:
    async def story(world: World) -> None:
        backend = world.backend
        calls = []
        for text, priority in (("a", 0), ("b", 0), ("late", 9), ("soon", 1), ("next", 0)):
            call = Call(priority=priority)
            calls.append(asyncio.create_task(backend.send(ask(text), call)))
            await asyncio.sleep(0.1)
        await asyncio.gather(*calls)
        bodies = [seen.body for seen in world.server.seen]
        texts = [
            text
            for body, text in itertools.product(bodies, ("a", "b", "late", "soon", "next"))
            if b'"content":"%b"' % text.encode() in body
        ]
        assert texts == ["a", "b", "next", "soon", "late"]

    play(late, story, limits=Limits(requests="1/10s", profile="fixed"))


def test_calls_get_ready_earlier_where_connections_take_long() -> None:
    async def story(world: World) -> None:
        backend = world.backend
        world.loop.connect_s = 8.0
        assert (await backend.send(ask(), Call())).is_success
        load = backend.load(world.loop.time())
        assert load.next_s - load.opens_s == pytest.approx(8.0, abs=0.1)
        assert not backend.has_room(load.opens_s - 0.1)
        assert backend.has_room(load.opens_s + 0.1)

    play(in_turn(YES), story, limits=Limits(requests="1/60s", profile="fixed"))


def test_a_search_for_the_calls_in_flight_learns_from_every_answer() -> None:
    async def story(world: World) -> None:
        backend = world.backend
        first = backend.load(world.loop.time()).slots
        await asyncio.gather(*[backend.send(ask(), Call()) for _ in range(300)])
        assert backend.load(world.loop.time()).slots > first
        # It has only climbed so far.
        assert backend.found() == []

    play(late, story, limits=Limits(concurrency="auto"))


# What it holds in memory.


@pytest.mark.parametrize(("size", "is_held"), [(LONG_BYTES, False), (LONG_BYTES + 1, True)])
def test_a_long_answer_is_held_until_its_caller_lets_go(size: int, *, is_held: bool) -> None:
    async def story(world: World) -> None:
        call = Call()
        assert (await world.backend.send(GET, call)).is_success
        assert (call.held is not None) == is_held
        call.let_go()
        assert call.held is None

    frame = len(msgspec.json.encode({"text": ""}))
    play(in_turn(answer({"text": "x" * (size - frame)})), story)


def test_an_answer_counts_twice_towards_the_memory_of_answers() -> None:
    async def story(world: World) -> None:
        call = Call()
        # The memory is full from 256 MiB on.
        other = world.intake.hold(254 * MB)
        assert (await world.backend.send(GET, call)).is_success
        assert world.intake.is_full
        call.let_go()
        other.release()
        assert not world.intake.is_full

    play(in_turn(answer({"text": "x" * MB})), story)
