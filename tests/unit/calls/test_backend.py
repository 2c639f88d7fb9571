"""What an HTTP backend reports of its calls, takes from its limits and hides, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from redline.calls import (
    Call,
    Chunk,
    Endpoint,
    HttpBackend,
    Outcome,
    Reply,
    Request,
    Sink,
    Timeouts,
)
from redline.calls.http import Shared
from redline.errors import (
    BadReply,
    CallError,
    Disconnected,
    RateLimited,
    Refused,
    TimedOut,
    Withdrawn,
)
from redline.limits import Limits
from redline.limits.shared import SharedLimiter
from redline.testing import VirtualClock, VirtualLoop, virtual_run
from redline.waist import Attempts, Health
from support.raw_server import Handler, RawServer, Seen, answer, chat
from support.sharing import Memory, MemoryLedger

LATENCY_S = 1.0
FILE = b'{"custom_id": "a"}\n' * 100
GET = Request(method="GET", url="/chat", output_path=("text",))


def ask(text: str = "hello", **settings: Any) -> Request:
    return Request(body={"model": "m", "messages": [{"role": "user", "content": text}]}, **settings)


async def late(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(LATENCY_S)
    writer.write(answer(chat("yes", usage={"prompt_tokens": 10, "completion_tokens": 5})))


def in_turn(*answers: bytes | None) -> Handler:
    """Writes the answers in turn; None hangs up instead."""
    left = list(answers)

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        reply = left.pop(0)
        if reply is None:
            writer.close()
        else:
            writer.write(reply)

    return handle


def play(
    handle: Handler,
    story: Callable[[HttpBackend, RawServer], Awaitable[None]],
    *,
    limits: Limits | None = None,
    **settings: Any,
) -> None:
    async def main() -> None:
        async with RawServer(handle) as server:
            backend = HttpBackend(
                Endpoint(base_url=server.base_url, limits=limits or Limits(), proxy="", **settings),
                attempts=Attempts(),
                clock=VirtualClock(asyncio.get_running_loop()),
            )
            await story(backend, server)
            await backend.aclose()

    virtual_run(main())


def now_s() -> float:
    return asyncio.get_running_loop().time()


def sent(backend: HttpBackend, count: int) -> list[asyncio.Task[Outcome]]:
    return [asyncio.create_task(backend.send(ask(), Call())) for _ in range(count)]


async def cancelled(tasks: list[asyncio.Task[Outcome]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Keeps(Sink):
    def __init__(self) -> None:
        self.text = ""

    async def put(self, chunk: Chunk) -> None:
        self.text += chunk.text


# What it reports.


def test_every_call_that_is_not_on_the_wire_is_counted_as_waiting_for_one_thing() -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        idle = backend.load(now_s())
        tasks = sent(backend, 50)
        await asyncio.sleep(LATENCY_S / 2)
        load = backend.load(now_s())
        # One is on the wire, 39 have slots and wait for the limit, 10 wait for slots.
        assert len(server.seen) == 1
        assert (load.in_flight, load.slots, load.waiting, load.queued) == (40, 40, 49, 10)
        assert (load.ahead_free, load.binds) == (0, "40 calls in flight")
        assert 59 < load.room_s < math.inf
        assert not load.is_down
        assert [kind for kind, _ in backend.limiter.holding(now_s())] == ["requests"]
        await cancelled(tasks)
        load = backend.load(now_s())
        assert (load.in_flight, load.waiting, load.queued) == (0, 0, 0)
        assert load.ahead_free == idle.ahead_free

    play(late, story, limits=Limits(requests="1/60s", concurrency=40, profile="fixed"))


def test_tokens_are_expected_of_the_calls_on_the_wire_alone() -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        assert backend.load(now_s()).tokens_out == 0
        (first,) = sent(backend, 1)
        await asyncio.sleep(LATENCY_S / 2)
        each = backend.load(now_s()).tokens_out
        assert each > 0
        tasks = [first, *sent(backend, 2)]
        await asyncio.sleep(LATENCY_S / 4)
        assert backend.load(now_s()).tokens_out == 3 * each
        await cancelled([tasks.pop()])
        assert backend.load(now_s()).tokens_out == 2 * each
        await asyncio.gather(*tasks)
        assert backend.load(now_s()).tokens_out == 0

    play(late, story, limits=Limits(tokens="100000/60s"))


def test_there_is_room_in_the_moment_in_which_a_wish_to_wait_ends() -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        idle = backend.load(0.0)
        backend.limiter.park(5.0)
        just_before = backend.load(4.999)
        assert just_before.binds == "the endpoint asked redline to wait"
        assert just_before.steady == 0
        assert not backend.has_room(4.999)
        then = backend.load(5.0)
        assert (then.binds, then.room_s, then.steady) == ("", 0.0, idle.steady)
        assert backend.has_room(5.0)

    play(late, story, limits=Limits(requests="100/1s", concurrency=8))


def test_there_is_room_for_as_many_calls_as_have_slots() -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        assert backend.has_room(now_s(), 1)
        assert not backend.has_room(now_s(), 2)
        tasks = sent(backend, 2)
        await asyncio.sleep(LATENCY_S / 2)
        assert not backend.has_room(now_s())
        assert backend.load(now_s()).room_s > 0
        await asyncio.gather(*tasks)
        assert backend.has_room(now_s(), 1)

    play(late, story, limits=Limits(concurrency=2))


# What it gives back.


def test_calls_that_wait_are_withdrawn_and_those_on_the_wire_are_not() -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        calls = [Call() for _ in range(4)]
        tasks = [asyncio.create_task(backend.send(ask(), call)) for call in calls]
        await asyncio.sleep(LATENCY_S / 2)
        assert backend.withdraw(Call()) == 0
        assert backend.withdraw(calls[0]) == 0
        assert backend.withdraw(calls[1]) == 1
        # Once each, and all that are left.
        assert backend.withdraw(calls[1]) == 0
        assert backend.withdraw() == 2
        outcomes = await asyncio.gather(*tasks)
        assert outcomes[0].is_success
        for outcome in outcomes[1:]:
            assert isinstance(outcome.error, Withdrawn)
            assert outcome.error.what == "the call was withdrawn"
            assert (outcome.attempts, outcome.tried) == (0, ())
        assert len(server.seen) == 1
        assert backend.load(now_s()).waiting == 0

    play(late, story, limits=Limits(concurrency=1))


def words(count: int) -> str:
    return "word " * count


def prompt_tokens(body: bytes) -> int:
    """As a server counts them: of each word, and of the frame around the text."""
    return body.count(b"word ") + 8


def forward(text: str) -> Request:
    """A chat as bytes: they bound its tokens."""
    return Request(raw=msgspec.json.encode(ask(text).body))


def taught(backend: HttpBackend, replies: int = 300) -> None:
    """The model's prompts are known as well as they become."""
    for number in range(replies):
        text = words(number % 7 + 1)
        used = prompt_tokens(text.encode())
        sending = backend.estimator.begin(forward(text))
        backend.estimator.end(sending, Reply(output="yes", input_tokens=used, output_tokens=5), 1.0)


async def counted(seen: Seen, writer: asyncio.StreamWriter) -> None:
    surplus = 5000 if b"surprise" in seen.body else 0
    usage = {"prompt_tokens": prompt_tokens(seen.body) + surplus, "completion_tokens": 5}
    writer.write(answer(chat("yes", usage=usage)))


@pytest.mark.parametrize("is_taught", [False, True])
def test_a_call_takes_one_place_of_a_limit_of_requests_however_its_tokens_are_found(
    *, is_taught: bool
) -> None:
    """They are estimated; once the model is known, a bound will usually do."""

    async def story(backend: HttpBackend, server: RawServer) -> None:
        if is_taught:
            taught(backend)
        easy = backend.limiter.easy_tokens
        assert (backend.estimator.bound(forward(words(3)), easy) is not None) == is_taught
        for _ in range(3):
            assert (await backend.send(forward(words(3)), Call())).is_success
            # Calls leave evenly: the next one has its turn a tenth of the minute later.
            assert 5.9 < backend.load(now_s()).room_s < 6.1
            await asyncio.sleep(6.1)

    play(counted, story, limits=Limits(requests="10/60s", tokens="1000000000/60s"))


@pytest.mark.parametrize("replies", [300, 301, 302])
def test_usage_beyond_a_bound_ends_the_trust_in_bounds_whichever_replies_teach(
    replies: int,
) -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        taught(backend, replies)
        easy = backend.limiter.easy_tokens
        assert (await backend.send(forward(words(3)), Call())).is_success
        assert backend.estimator.bound(forward(words(3)), easy) is not None
        await asyncio.sleep(1)
        assert (await backend.send(forward("surprise " + words(3)), Call())).is_success
        assert backend.estimator.bound(forward(words(3)), easy) is None

    play(counted, story, limits=Limits(tokens="1000000000/60s"))


# What it sends, and sends again.


def test_a_request_without_a_body_leaves_nothing_behind_its_head() -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        for _ in range(3):
            assert (await backend.send(GET, Call())).output == "yes"
        assert [(seen.method, seen.body) for seen in server.seen] == [("GET", b"")] * 3
        assert server.connections == 1

    play(in_turn(*[answer({"text": "yes"})] * 3), story)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_call_whose_kept_connection_is_lost_is_sent_again_as_it_was(*, is_streamed: bool) -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        assert (await backend.send(ask("first"), Call())).is_success
        sink = Keeps() if is_streamed else None
        outcome = await backend.send(ask("second"), Call(), sink)
        assert (outcome.output, outcome.attempts) == ("yes", 1)
        assert sink is None or sink.text == "yes"
        first, lost, again = server.seen
        assert (first.connection, lost.connection, again.connection) == (1, 1, 2)
        assert lost.body == again.body != first.body

    event = b'data: {"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"stop"}]}\n\n'
    stream = answer(event + b"data: [DONE]\n\n", content_type="text/event-stream")
    reply = stream if is_streamed else answer(chat("yes"))
    play(in_turn(answer(chat("no")), None, reply), story)


def test_a_timeout_of_a_call_in_flight_does_not_end_an_outage() -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def main() -> None:
        listener = await asyncio.start_server(hold, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        backend = HttpBackend(
            Endpoint(
                base_url=f"http://127.0.0.1:{port}/v1", proxy="", timeouts=Timeouts(attempt_s=2.0)
            ),
            clock=VirtualClock(asyncio.get_running_loop()),
        )
        (in_flight,) = sent(backend, 1)
        await asyncio.sleep(1.0)
        listener.close()
        assert isinstance((await backend.send(ask(), Call())).error, Disconnected)
        assert backend.load(now_s()).state is Health.DEGRADED
        assert isinstance((await in_flight).error, TimedOut)
        assert backend.load(now_s()).state is Health.DEGRADED
        await backend.aclose()

    virtual_run(main())


# What it downloads.


def test_a_download_is_passed_on_whatever_it_is_and_takes_no_slot() -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        parts: list[bytes] = []

        async def take(part: bytes) -> None:
            parts.append(part)

        (call,) = sent(backend, 1)
        await asyncio.sleep(0.1)
        assert backend.load(now_s()).room_s > 0
        await backend.download(GET, Call(), take)
        assert b"".join(parts) == FILE
        await cancelled([call])
        # Its connection is kept. When that is lost, the next file comes on a new one.
        parts.clear()
        await backend.download(GET, Call(), take)
        assert b"".join(parts) == FILE
        assert [seen.connection for seen in server.seen] == [1, 2, 2, 3]

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.method == "POST":
            await asyncio.Event().wait()
        elif len(server_connections) == 1:
            server_connections.append(seen.connection)
            writer.close()
        else:
            server_connections.append(seen.connection)
            writer.write(answer(FILE, content_type="application/jsonl"))

    server_connections: list[int] = []
    play(handle, story, limits=Limits(concurrency=1))


def test_a_download_is_in_flight_until_it_is_over() -> None:
    counts: list[tuple[int, int, dict[str, int]]] = []

    async def take(part: bytes) -> None:
        counts.append((attempts.attempts, attempts.in_flight, dict(attempts.errors)))

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        is_missing = seen.target.endswith("missing")
        writer.write(answer(FILE, 404) if is_missing else answer(FILE, content_type="text/plain"))

    async def main() -> None:
        async with RawServer(handle) as server:
            backend = HttpBackend(Endpoint(base_url=server.base_url, proxy=""), attempts=attempts)
            await backend.download(GET, Call(), take)
            with pytest.raises(CallError):
                await backend.download(Request(method="GET", url="/missing"), Call(), take)
            await backend.aclose()

    attempts = Attempts()
    virtual_run(main())
    assert counts[0] == (1, 1, {})
    assert (attempts.attempts, attempts.in_flight, attempts.errors.total()) == (2, 0, 1)


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_download_that_fails_raises_the_located_error(*, is_kept: bool) -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        parts: list[bytes] = []

        async def take(part: bytes) -> None:
            parts.append(part)

        if is_kept:
            await backend.download(GET, Call(), take)
        with pytest.raises(CallError, match="no such file") as caught:
            await backend.download(GET, Call(), take)
        assert caught.value.status == 404
        assert caught.value.where == "endpoint files"
        assert parts == ([FILE] if is_kept else [])
        assert backend.load(now_s()).waiting == 0

    missing = answer({"error": {"message": "no such file"}}, 404)
    play(in_turn(*([answer(FILE)] if is_kept else []), missing), story, name="files")


# What it hides.


@pytest.mark.parametrize(
    ("settings", "headers", "secret"),
    [
        ({"api_key": "sk-planted-4711"}, {}, "sk-planted-4711"),
        ({}, {"Authorization": "Bearer sk-planted-4712"}, "sk-planted-4712"),
        ({"api_key": "sk-planted-4711"}, {"X-Api-Key": "sk-planted-4713"}, "sk-planted-4713"),
        ({"api_key": "sk-planted-4711"}, {"X-Other": "sk-planted-4713"}, "sk-planted-4711"),
    ],
)
@pytest.mark.parametrize("status", [401, 200])
def test_a_server_that_quotes_a_key_is_quoted_without_it(
    settings: dict[str, Any], headers: dict[str, str], secret: str, status: int
) -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        outcome = await backend.send(ask(headers=headers), Call())
        assert isinstance(outcome.error, CallError)
        assert "<key>" in outcome.error.what
        for text in (str(outcome.error), outcome.error.hint, outcome.error.body.decode()):
            assert secret not in text
        assert any(secret in value for value in server.seen[0].headers.values())

    play(
        in_turn(answer({"error": {"message": f"no key {secret} here"}}, status)), story, **settings
    )


@pytest.mark.parametrize("tail", ["", " and what follows it"])
def test_a_key_is_hidden_behind_letters_that_are_longer_in_lower_case(tail: str) -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        outcome = await backend.send(ask(), Call())
        assert isinstance(outcome.error, CallError)
        assert outcome.error.what.endswith(f"\u0130\u0130\u0130 <key>{tail}")

    body = {"error": {"message": f"\u0130\u0130\u0130 sk-planted-4711{tail}"}}
    play(in_turn(answer(body, 400)), story, api_key="sk-planted-4711")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("piece", ["\\", "\\u005c", "%255c"])
def test_a_body_of_escapes_is_masked_in_time_by_its_length(piece: str) -> None:
    body = f"{piece * (60_000 // len(piece))} sk-planted-4711".encode()

    async def story(backend: HttpBackend, server: RawServer) -> None:
        outcome = await backend.send(ask(), Call())
        assert isinstance(outcome.error, CallError)
        assert outcome.error.body.endswith(b" <key>")

    play(in_turn(answer(body, 400)), story, api_key="sk-planted-4711")


# What it makes of answers.


def test_an_answer_is_checked_against_what_was_asked() -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        three = Request(body={"model": "m", "n": 3, "messages": []})
        assert isinstance((await backend.send(three, Call())).error, BadReply)
        assert (await backend.send(ask(), Call())).output == "yes"

    play(in_turn(*[answer(chat("yes"))] * 2), story)


def test_tokens_are_counted_as_they_are_reported_and_no_others() -> None:
    attempts = Attempts()

    async def main() -> None:
        replies = answer(chat("yes")), answer(chat("yes", usage={"prompt_tokens": 7}))
        whole = answer(chat("yes", usage={"prompt_tokens": 7, "completion_tokens": 3}))
        async with RawServer(in_turn(*replies, whole)) as server:
            backend = HttpBackend(
                Endpoint(base_url=server.base_url, proxy=""),
                attempts=attempts,
                clock=VirtualClock(asyncio.get_running_loop()),
            )
            for counted in ((0, 0), (7, 0), (14, 3)):
                assert (await backend.send(ask(), Call())).is_success
                assert (attempts.input_tokens, attempts.output_tokens) == counted
            assert (attempts.attempts, attempts.in_flight, attempts.retries) == (3, 0, 0)
            await backend.aclose()

    virtual_run(main())


# What its errors say.


@pytest.mark.parametrize(
    ("reply", "kind", "status"),
    [
        (answer({"error": {"message": "no"}}, 401), Refused, 401),
        (answer({"error": {"message": "slow"}}, 429, Retry_After="7"), RateLimited, 429),
        (None, Disconnected, None),
    ],
)
def test_an_outcome_names_its_endpoint_and_its_one_attempt(
    reply: bytes | None, kind: type[CallError], status: int | None
) -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        outcome = await backend.send(ask(), Call())
        assert type(outcome.error) is kind
        assert isinstance(outcome.error, CallError)
        assert outcome.error.status == status
        assert outcome.error.where == "endpoint gpu-2"
        assert outcome.endpoint == "gpu-2"
        (tried,) = outcome.tried
        assert (tried.endpoint, tried.error) == ("gpu-2", outcome.error)
        parked_s = 7.0 if kind is RateLimited else -math.inf
        assert backend.load(now_s()).parked_until_s == pytest.approx(parked_s, abs=0.01)

    play(in_turn(reply), story, name="gpu-2")


class Slow(Sink):
    """Takes twenty seconds for each part."""

    async def put(self, chunk: Chunk) -> None:
        await asyncio.sleep(20.0)


def test_limits_that_an_answer_states_hold_while_its_sink_still_takes_it() -> None:
    stated = {"x_ratelimit_limit_requests": "5", "x_ratelimit_remaining_requests": "4"}

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(chat("yes"), **stated))

    async def story(backend: HttpBackend, server: RawServer) -> None:
        calls = [asyncio.create_task(backend.send(ask(), Call(), Slow()))]
        await asyncio.sleep(10.0)
        calls += [asyncio.create_task(backend.send(ask(), Call(), Slow())) for _ in range(40)]
        await asyncio.sleep(9.0)
        assert not any(call.done() for call in calls)
        assert len(server.seen) == 5
        await cancelled(calls)

    play(handle, story, limits=Limits(requests="1000/60s", rate="auto", profile="fixed"))


@pytest.mark.parametrize("concurrency", [2, 64])
def test_a_token_limit_that_an_answer_states_holds_for_calls_that_already_wait(
    concurrency: int,
) -> None:
    numbers = itertools.count(1)

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        left = max(0, 1000 - 100 * next(numbers))
        stated = {"x_ratelimit_limit_tokens": "1000", "x_ratelimit_remaining_tokens": str(left)}
        usage = {"prompt_tokens": 50, "completion_tokens": 50, "total_tokens": 100}
        writer.write(answer(chat("yes") | {"usage": usage}, **stated))

    async def story(backend: HttpBackend, server: RawServer) -> None:
        calls = sent(backend, 60)
        await asyncio.sleep(50.0)
        assert 5 <= len(server.seen) <= 12
        await cancelled(calls)

    limits = Limits(requests="60/60s", rate="auto", concurrency=concurrency)
    play(handle, story, limits=limits)


class SlowLoop(VirtualLoop):
    """It may be blocked, and its connections may take long to make."""

    blocked_s = 0.0
    connect_s = 0.0

    def time(self) -> float:
        return super().time() + self.blocked_s

    async def create_connection(self, *given: Any, **named: Any) -> Any:
        await asyncio.sleep(self.connect_s)
        return await super().create_connection(*given, **named)


@pytest.mark.parametrize("slow", ["disk", "connection"])
def test_a_call_that_misses_its_time_under_shared_limits_waits_for_another(slow: str) -> None:
    loop = SlowLoop(start_s=1000.0)
    memory, limits = Memory(), Limits(requests="1/1s", profile="fixed", guard_s=0.05)

    def before_write() -> None:
        if slow == "disk" and loop.time() > 1001.0 and not loop.blocked_s:
            loop.blocked_s = 2.0

    async def main() -> None:
        ledgers = MemoryLedger(memory), MemoryLedger(memory)
        mine, other = (SharedLimiter(limits, ledger, ledger.clock) for ledger in ledgers)
        async with RawServer(in_turn(*[answer(chat("yes"))] * 2)) as server:
            backend = HttpBackend(
                Endpoint(base_url=server.base_url, limits=limits, proxy=""),
                shared=Shared(limiter=mine),
                before_write=before_write,
                clock=ledgers[0].clock,
            )
            first = await backend.send(ask(), Call())
            waiting = asyncio.create_task(backend.send(ask(), Call()))
            await asyncio.sleep(0.5)
            if slow == "connection":
                loop.connect_s = 2.0
                server.hang_up()
            # Then a time that passed without a send no longer counts for the other process.
            await asyncio.sleep(2.0)
            grant = await other.acquire()
            grant.sent(now_s())
            second = await waiting
            assert len(server.seen) == 2
            await backend.aclose()
        await other.aclose()
        stamps = [first.tried[0].sent_s, second.tried[0].sent_s, grant.sent_s]
        sent_s = sorted(at_s for at_s in stamps if at_s is not None)
        assert len(sent_s) == 3
        assert all(later - earlier >= 1.0 for earlier, later in itertools.pairwise(sent_s))

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


def test_a_call_whose_time_is_up_is_not_sent() -> None:
    async def story(backend: HttpBackend, server: RawServer) -> None:
        await asyncio.sleep(5.0)
        outcome = await backend.send(ask(), Call(deadline_s=5.0))
        assert isinstance(outcome.error, TimedOut)
        assert outcome.error.phase == "row"
        assert not server.seen
        assert (await backend.send(ask(), Call(deadline_s=5.0 + 2 * LATENCY_S))).is_success

    play(late, story)
