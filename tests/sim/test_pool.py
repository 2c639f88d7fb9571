"""A pool of HTTP endpoints: their limits are used to the full, and any of them may be lost."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest

from redline.calls import Call, Endpoint, HttpBackend, Request, Retry
from redline.errors import (
    BadRow,
    Disconnected,
    NoEndpoint,
    OverLimit,
    RateLimited,
    Refused,
    ServerFailed,
    Withdrawn,
)
from redline.limits import Limits
from redline.route import Pool, Seat, strategy_of
from redline.route.member import PoolMember
from redline.testing import VirtualClock, virtual_run
from redline.waist import Attempts, Health, Outcome
from support.fleet import ModelServer
from support.raw_server import RawServer, Seen, answer, chat

LATENCY_S = 1.0


def ask(number: int) -> Request:
    return Request(body={"model": "m", "user": str(number), "messages": []})


class Paced:
    """A server whose answers take `latency_s`."""

    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s

    async def __call__(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self.latency_s)
        writer.write(answer(chat("yes", usage={"prompt_tokens": 50, "completion_tokens": 50})))


class Window:
    """A server that takes `count` requests in any second; parks on demand."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.sent: list[float] = []
        self.rejected = 0
        self.parked_until_s = 0.0

    async def __call__(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self.parked_until_s:
            wait_s = self.parked_until_s - now_s
            writer.write(answer(b"{}", status=429, Retry_After=f"{math.ceil(wait_s)}"))
            return
        if sum(now_s - at_s < 1.0 for at_s in self.sent[-self.count :]) >= self.count:
            self.rejected += 1
            writer.write(answer(b"{}", status=429))
            return
        self.sent.append(now_s)
        await asyncio.sleep(LATENCY_S)
        writer.write(answer(chat("yes")))


def pool_of(
    servers: Sequence[RawServer], attempts: Attempts, strategy: str = "p2c", **limits: object
) -> Pool:
    """limits: of each; a list has those of one endpoint after the other."""
    clock = VirtualClock(asyncio.get_running_loop())

    def seat(number: int, server: RawServer) -> Seat:
        own = {
            name: value[number] if isinstance(value, list) else value
            for name, value in limits.items()
        }
        endpoint = Endpoint(
            base_url=server.base_url,
            name=f"key-{number}",
            limits=Limits(**own),  # type: ignore[arg-type]
            proxy="",
        )

        def make(on_room: Callable[[], None]) -> HttpBackend:
            return HttpBackend(endpoint, attempts=attempts, on_room=on_room, clock=clock)

        return Seat(name=endpoint.label, make=make)

    seats = [seat(number, server) for number, server in enumerate(servers)]
    return Pool(seats, strategy_of(strategy, random.Random(1)), clock=clock, seed=1)


async def run_rows(pool: Pool, rows: int, *, at_once: int) -> list[Outcome]:
    backend = Retry(pool, clock=VirtualClock(asyncio.get_running_loop()), seed=1)
    numbers, outcomes = iter(range(rows)), list[Outcome]()

    async def work() -> None:
        for number in numbers:
            outcomes.append(await backend.send(ask(number), Call()))

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    return outcomes


@pytest.mark.parametrize("profile", ["any", "fixed", "bucket"])
@pytest.mark.parametrize("kind", ["requests", "tokens"])
def test_no_call_waits_long_for_the_limits_of_one_key_while_another_has_room(
    profile: str, kind: str
) -> None:
    rates = {"requests": ["3/60s", "600/60s"], "tokens": ["500/60s", "100k/60s"]}[kind]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        # The quicker one would get all calls.
        async with RawServer(Paced(0.1)) as small, RawServer(Paced(5.0)) as large:
            pool = pool_of([small, large], Attempts(), profile=[profile] * 2, **{kind: rates})
            waits_s, used = [], set[str]()
            for _ in range(40):
                asked_s = loop.time()
                outcome = await pool.send(ask(1).with_fields(max_tokens=50), Call())
                sent_s = outcome.tried[-1].sent_s
                assert sent_s is not None
                waits_s.append(sent_s - asked_s)
                used.add(outcome.endpoint)
            await pool.aclose()
        assert used == {"key-0", "key-1"}
        # How many tokens a call takes is not known before it comes.
        assert max(waits_s) <= (1.0 if kind == "requests" else 15.0)
        assert sum(waits_s) / len(waits_s) < 1.0

    virtual_run(main())


@pytest.mark.parametrize("profile", ["any", "fixed", "bucket"])
def test_keys_with_few_calls_a_minute_are_used_to_the_full(profile: str) -> None:
    async def main() -> None:
        async with RawServer(Paced(0.1)) as one, RawServer(Paced(0.1)) as other:
            pool = pool_of([one, other], Attempts(), requests="3/60s", profile=profile)
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            outcomes = await run_rows(pool, 60, at_once=8)
            took_s = loop.time() - begun_s
            await pool.aclose()
        assert all(outcome.is_success for outcome in outcomes)
        # 30 calls of each, of which the first do not wait.
        assert took_s < 29 * 20.1

    virtual_run(main())


@pytest.mark.parametrize(("requests", "most_s"), [("1/1s", 7.5), ("1/2s", 14.5)])
def test_calls_that_waited_go_at_the_limit_whatever_the_answers_take(
    requests: str, most_s: float
) -> None:
    async def main() -> None:
        loop, server = asyncio.get_running_loop(), Paced(0.1)
        async with RawServer(server) as listening:
            pool = pool_of([listening], Attempts(), requests=requests)
            await pool.send(ask(0), Call())
            await asyncio.sleep(5.0)
            # The next call is sent at once, on the connection of the first one.
            server.latency_s = 40.0
            again_s = loop.time() + 10.0
            pool.members[0].backend.limiter.park(again_s)  # type: ignore[attr-defined]
            outcomes = await asyncio.gather(*(pool.send(ask(n), Call()) for n in range(8)))
            await pool.aclose()
        assert max(one.tried[-1].sent_s or 0.0 for one in outcomes) - again_s < most_s

    virtual_run(main())


@pytest.mark.slow
def test_four_keys_are_used_to_the_full_while_one_of_them_is_parked() -> None:
    async def main() -> None:
        rate, rows, parked_s = 20, 2_000, 10.0
        windows = [Window(rate) for _ in range(4)]
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(RawServer(one)) for one in windows]
            attempts = Attempts()
            pool = pool_of(servers, attempts, requests=f"{rate}/1s", concurrency=200)
            loop = asyncio.get_running_loop()
            begun_s = loop.time()

            def park() -> None:
                windows[0].parked_until_s = loop.time() + parked_s

            loop.call_later(8.0, park)
            outcomes = await run_rows(pool, rows, at_once=200)
            took_s = loop.time() - begun_s - LATENCY_S
            await pool.aclose()
        assert all(outcome.is_success for outcome in outcomes)
        assert [window.rejected for window in windows] == [0, 0, 0, 0]
        # The guard against jitter takes 55 ms of each second.
        capacity = (4 * took_s - parked_s) * rate / 1.055
        assert rows >= 0.97 * capacity
        waits = [
            attempt.sent_s - attempt.eligible_s
            for outcome in outcomes
            for attempt in outcome.tried
            if attempt.sent_s is not None and attempt.eligible_s is not None
        ]
        assert max(waits, default=0.0) < 2.0
        # The row that met the 429 goes to another key.
        assert max(len(outcome.tried) for outcome in outcomes) > 1
        assert all(ended_s(one) - one.tried[0].complete_s < 5.0 for one in outcomes)

    virtual_run(main())


@pytest.mark.parametrize("again_s", [3.0, 40.0])
def test_a_call_is_sent_when_its_only_endpoint_is_parked_no_more(again_s: float) -> None:
    async def main() -> None:
        window = Window(100)
        async with RawServer(window) as server:
            pool = pool_of([server], Attempts(), concurrency=4)
            loop = asyncio.get_running_loop()
            window.parked_until_s = loop.time() + again_s
            first = await pool.send(ask(0), Call())
            assert isinstance(first.error, RateLimited)
            until_s = pool.load(loop.time()).parked_until_s
            assert until_s >= loop.time() + again_s
            outcome = await pool.send(ask(1), Call())
            assert outcome.is_success
            assert until_s <= loop.time() - LATENCY_S < until_s + 0.1
            await pool.aclose()

    virtual_run(main())


def test_a_degraded_endpoint_that_is_alone_waits_for_the_end_of_its_park_alone() -> None:
    status = 500

    async def door(seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal status
        after, body = {}, chat("yes") if status == 200 else b"{}"
        if status == 503:
            after = {"Retry_After": "1"}
        writer.write(answer(body, status=status, **after))
        if status == 503:
            status = 200

    async def main() -> None:
        nonlocal status
        async with RawServer(door) as server:
            pool = pool_of([server], Attempts(), concurrency=4)
            loop, member = asyncio.get_running_loop(), pool.members[0]
            # Its breaker pauses for longer and longer.
            while member.breaker.again_s < loop.time() + 14:
                await pool.send(ask(0), Call())
                await asyncio.sleep(0.1)
            status = 503
            assert isinstance((await pool.send(ask(1), Call())).error, ServerFailed)
            begun_s = loop.time()
            assert (await pool.send(ask(2), Call())).is_success
            assert loop.time() - begun_s < 1.2
            await pool.aclose()

    virtual_run(main())


class Large:
    """A server that fails, refuses its key or answers."""

    def __init__(self) -> None:
        self.status = 200

    async def __call__(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        writer.write(answer(chat("yes") if self.status == 200 else b"{}", status=self.status))


def large_row() -> Request:
    text = "many words " * 2000
    return Request(
        body={"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": text}]}
    )


@pytest.mark.parametrize(
    ("then", "outcome"),
    [("answers", None), ("refuses", OverLimit), ("dies", OverLimit), ("retries", None)],
)
def test_a_call_waits_for_the_only_endpoint_that_is_large_enough(
    then: str, outcome: type[Exception] | None
) -> None:
    async def main() -> None:
        loop, state = asyncio.get_running_loop(), Large()
        async with RawServer(repeat) as small, RawServer(state) as large:
            pool = pool_of([small, large], Attempts(), tokens=["2k/1s", "1m/1s"])
            assert all(one.is_success for one in await run_rows(pool, 40, at_once=16))
            state.status = 500
            await run_rows(pool, 40, at_once=16)
            assert pool.members[1].health(loop.time()) is Health.DEGRADED
            backend = Retry(pool, clock=VirtualClock(loop), seed=1)
            waiting = [asyncio.create_task(backend.send(large_row(), Call())) for _ in range(3)]
            await asyncio.sleep(0)
            # The others go on meanwhile.
            rows = await run_rows(pool, 20, at_once=16)
            assert all(one.is_success for one in rows)
            assert not any(one.done() for one in waiting)
            begun_s = loop.time()
            if then == "dies":
                await large.stop()
            else:
                state.status = {"answers": 200, "refuses": 401, "retries": 500}[then]
            if then == "retries":
                loop.call_later(20, lambda: setattr(state, "status", 200))
            ended = [await one for one in waiting]
            found = {None if one.error is None else type(one.error) for one in ended}
            assert found == {outcome}
            most_s = {"dies": 400, "retries": 60}.get(then, 30)
            assert loop.time() - begun_s < most_s
            await pool.aclose()

    virtual_run(main())


@pytest.mark.parametrize(("fits_second", "status"), [(True, 429), (True, 413), (False, 429)])
def test_a_call_that_a_provider_finds_too_large_goes_to_another_one(
    fits_second: bool, status: int
) -> None:
    """No limit is stated, so nothing but the answer says that the call is too large."""
    message = "Request too large for m on tokens per min (TPM): Limit 3, Requested 4."

    async def small(seen: Seen, writer: asyncio.StreamWriter) -> None:
        body = f'{{"error": {{"message": "{message}", "code": "rate_limit_exceeded"}}}}'
        writer.write(answer(body.encode(), status=status))

    async def main() -> None:
        second = repeat if fits_second else small
        async with RawServer(small) as first, RawServer(second) as other:
            pool = pool_of([first, other], Attempts())
            outcomes = [await pool.send(ask(number), Call()) for number in range(6)]
            assert [one.is_success for one in outcomes] == [fits_second] * 6
            if not fits_second:
                assert {type(one.error) for one in outcomes} == {OverLimit}
                assert len(first.seen) == len(other.seen) == 6
            await pool.aclose()

    virtual_run(main())


def test_no_more_calls_are_in_flight_than_are_allowed_together() -> None:
    async def main() -> None:
        servers = [ModelServer(f"s{n}", slots=8, bound=8) for n in range(2)]

        def seat(server: ModelServer) -> Seat:
            return Seat(name=server.name, make=lambda on_room: server)

        clock = VirtualClock(asyncio.get_running_loop())
        begun_s = clock.now_s()
        pool = Pool(
            [seat(one) for one in servers],
            strategy_of("p2c", random.Random(1)),
            most=5,
            clock=clock,
        )

        async def work() -> None:
            assert (await pool.send(Request(body={"work": 1.0}), Call())).is_success

        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(work())
            await asyncio.sleep(0.5)
            load = pool.load(clock.now_s())
            assert (load.in_flight, load.slots, load.waiting) == (5, 5, 95)
            assert (load.room_s > 0, load.binds) == (True, "5 calls in flight")
        assert clock.now_s() - begun_s == pytest.approx(20.0, abs=0.1)

    virtual_run(main())


def test_a_pool_that_may_send_one_call_at_a_time_says_so() -> None:
    async def main() -> None:
        seat = Seat(name="s", make=lambda _: ModelServer("s", slots=8, bound=8))
        pool = Pool([seat], strategy_of("p2c", random.Random(1)), most=1)
        sending = asyncio.create_task(pool.send(Request(body={"work": 1.0}), Call()))
        await asyncio.sleep(0.5)
        assert pool.load(asyncio.get_running_loop().time()).binds == "1 call in flight"
        await sending

    virtual_run(main())


def ended_s(outcome: Outcome) -> float:
    return outcome.tried[-1].complete_s


async def repeat(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0.1)
    writer.write(answer(chat(str(seen.json()["user"]))))  # type: ignore[index]


@pytest.mark.slow
def test_a_server_that_dies_and_comes_back_loses_no_row() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(RawServer(repeat)) for _ in range(3)]
            dying = servers[0]
            pool = pool_of(servers, Attempts(), concurrency=16)
            loop = asyncio.get_running_loop()

            async def die() -> None:
                await asyncio.sleep(2.0)
                await dying.stop()
                await asyncio.sleep(5.0)
                before = len(dying.seen)
                await dying.start()
                await asyncio.sleep(30.0)
                assert len(dying.seen) > before + 100

            dies = asyncio.create_task(die())
            begun_s = loop.time()
            outcomes = await run_rows(pool, 20_000, at_once=48)
            assert loop.time() - begun_s > 37
            await dies
            await pool.aclose()
        assert all(outcome.is_success for outcome in outcomes)
        users = [str(seen.json()["user"]) for server in servers for seen in server.seen]  # type: ignore[index]
        # Those that it had when it died were asked again elsewhere.
        assert len(set(users)) == 20_000
        assert len(users) <= 20_000 + 16

    virtual_run(main())


async def silent(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


@pytest.mark.slow
def test_a_server_that_lets_the_deadlines_of_calls_pass_gets_few_of_them() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with RawServer(repeat) as one, RawServer(repeat) as other, RawServer(silent) as hung:
            pool = pool_of([one, other, hung], Attempts(), "round_robin")
            ends = Counter[str]()

            async def work() -> None:
                while loop.time() < until_s:
                    call = Call(deadline_s=loop.time() + 0.5)
                    ends[(await pool.send(ask(0), call)).status] += 1

            until_s = loop.time() + 60.0
            await asyncio.gather(*(work() for _ in range(8)))
            assert pool.members[2].breaker.state is Health.DEGRADED
            # Those in flight when it is noticed, and one for each pause of up to 15 s.
            assert 0 < len(hung.seen) == ends["exhausted"] < 30
            await pool.aclose()

    virtual_run(main())


def test_deadlines_that_are_too_short_for_a_server_are_nothing_against_it() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with RawServer(repeat) as quick, RawServer(Window(1_000)) as slow:
            pool = pool_of([quick, slow], Attempts(), "round_robin")
            # Each has answered, so that it is known how long that takes.
            await asyncio.gather(*(pool.send(ask(n), Call()) for n in range(4)))
            late_s = loop.time() + LATENCY_S / 2
            outcomes = await asyncio.gather(
                *(pool.send(ask(n), Call(deadline_s=late_s)) for n in range(60))
            )
            assert Counter(outcome.status for outcome in outcomes)["exhausted"] == 30
            assert [member.breaker.state for member in pool.members] == [Health.READY] * 2
            await pool.aclose()

    virtual_run(main())


async def give_up(pool: Pool, after_s: float, *, at_once: int = 8, for_s: float) -> Counter[bool]:
    """Callers who leave after so long; how many of them had an answer, and how many had none."""
    loop, ends = asyncio.get_running_loop(), Counter[bool]()
    until_s = loop.time() + for_s

    async def work() -> None:
        while loop.time() < until_s:
            sending = asyncio.create_task(pool.send(ask(0), Call()))
            ended, _ = await asyncio.wait([sending], timeout=after_s)
            sending.cancel()
            ends[bool(ended)] += 1

    await asyncio.gather(*(work() for _ in range(at_once)))
    return ends


def test_a_server_that_its_callers_wait_for_in_vain_gets_few_of_them() -> None:
    async def main() -> None:
        async with RawServer(repeat) as one, RawServer(repeat) as other, RawServer(silent) as hung:
            pool = pool_of([one, other, hung], Attempts(), "round_robin")
            ends = await give_up(pool, 0.5, for_s=60.0)
            assert pool.members[2].breaker.state is Health.DEGRADED
            # Those in flight when it is noticed, and one for each pause of up to 15 s.
            assert 0 < len(hung.seen) == ends[False] < 30
            await pool.aclose()

    virtual_run(main())


@pytest.mark.slow
@pytest.mark.parametrize(("patience_s", "for_s"), [(LATENCY_S / 2, 20.0), (3.5 * LATENCY_S, 60.0)])
def test_impatient_callers_are_nothing_against_a_server_that_answers(
    patience_s: float, for_s: float
) -> None:
    """Neither if they never wait for long enough, nor if every third answer takes very long."""

    async def main() -> None:
        draw = random.Random(1)

        async def slow(seen: Seen, writer: asyncio.StreamWriter) -> None:
            is_long = draw.random() < 1 / 3 and patience_s > LATENCY_S
            await asyncio.sleep(10 * LATENCY_S if is_long else LATENCY_S)
            writer.write(answer(chat("yes")))

        async with RawServer(repeat) as quick, RawServer(slow) as server:
            pool = pool_of([quick, server], Attempts(), "round_robin")
            # Each has answered, so that it is known how long that takes.
            await asyncio.gather(*(pool.send(ask(n), Call()) for n in range(4)))
            ends = await give_up(pool, patience_s, at_once=16, for_s=for_s)
            assert ends[False] > 100
            assert [member.breaker.state for member in pool.members] == [Health.READY] * 2
            await pool.aclose()

    virtual_run(main())


def test_calls_that_a_run_aborts_are_nothing_against_their_server() -> None:
    async def main() -> None:
        is_hung = False

        async def hangs(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await (silent if is_hung else repeat)(seen, writer)

        async with RawServer(repeat) as good, RawServer(hangs) as other:
            pool = pool_of([good, other], Attempts(), "round_robin")
            await run_rows(pool, 40, at_once=8)
            is_hung = True
            calls = [Call() for _ in range(40)]
            tasks = [asyncio.create_task(pool.send(ask(0), call)) for call in calls]
            await asyncio.sleep(10.0)
            for call, task in zip(calls, tasks, strict=True):
                # As a run does that is drained, and then aborted.
                call.deadline_s = -math.inf
                task.cancel()
            await asyncio.wait(tasks)
            assert sum(task.cancelled() for task in tasks) == 20
            assert pool.members[1].breaker.state is Health.READY
            await pool.aclose()

    virtual_run(main())


def test_a_call_that_is_not_written_is_no_sign_that_its_server_works_again() -> None:
    async def fails(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"{}", status=500))

    async def main() -> None:
        async with RawServer(repeat) as good, RawServer(fails) as bad:
            pool = pool_of([good, bad], Attempts(), "round_robin")
            await run_rows(pool, 100, at_once=8)
            assert pool.members[1].breaker.state is Health.DEGRADED
            await asyncio.sleep(30.0)
            for _ in range(10):
                outcome = await pool.send(Request(body={"model": object()}), Call())
                assert isinstance(outcome.error, BadRow)
            assert pool.members[1].breaker.state is Health.DEGRADED
            await pool.aclose()

    virtual_run(main())


def test_if_no_server_has_ever_answered_the_calls_end_soon() -> None:
    async def main() -> None:
        async with RawServer(repeat) as one, RawServer(repeat) as other:
            servers = [one, other]
        pool = pool_of(servers, Attempts(), concurrency=4)
        begun_s = asyncio.get_running_loop().time()
        outcomes = await run_rows(pool, 16, at_once=16)
        await pool.aclose()
        assert all(isinstance(outcome.error, NoEndpoint) for outcome in outcomes)
        assert 5.0 <= ended_s(outcomes[0]) - begun_s < 10.0

    virtual_run(main())


def test_if_all_servers_die_the_calls_wait_for_them_and_then_end() -> None:
    async def main() -> None:
        async with RawServer(repeat) as one, RawServer(repeat) as other:
            pool = pool_of([one, other], Attempts(), concurrency=4)
            assert all(outcome.is_success for outcome in await run_rows(pool, 100, at_once=8))
        begun_s = asyncio.get_running_loop().time()
        outcomes = await run_rows(pool, 16, at_once=16)
        assert pool.load(asyncio.get_running_loop().time()).state is Health.GONE
        await pool.aclose()
        assert all(isinstance(outcome.error, NoEndpoint) for outcome in outcomes)
        # The longest pause between two attempts is 15 s.
        assert 300.0 <= ended_s(outcomes[0]) - begun_s < 320.0

    virtual_run(main())


async def waits_of(strategy: str, rates: Sequence[int], *, calls: int, per_s: float) -> list[float]:
    """How long each of these calls waited to be written, at keys of these rates a second."""
    async with AsyncExitStack() as stack:
        windows = [Window(rate) for rate in rates]
        servers = [await stack.enter_async_context(RawServer(one)) for one in windows]
        limits = [f"{rate}/1s" for rate in rates]
        pool = pool_of(servers, Attempts(), strategy, requests=limits, concurrency=64)
        waits_s = list[float]()

        async def send(number: int) -> None:
            since_s = asyncio.get_running_loop().time()
            outcome = await pool.send(ask(number), Call())
            assert outcome.is_success, outcome
            sent_s = outcome.tried[0].sent_s
            assert sent_s is not None
            waits_s.append(sent_s - since_s)

        async with asyncio.TaskGroup() as group:
            for number in range(calls):
                group.create_task(send(number))
                await asyncio.sleep(1 / per_s)
        await pool.aclose()
        assert not any(window.rejected for window in windows)
    return waits_s


def test_room_finds_the_key_that_can_send_first() -> None:
    blind = virtual_run(waits_of("round_robin", (2, 40), calls=300, per_s=20))
    seeing = virtual_run(waits_of("room", (2, 40), calls=300, per_s=20))
    # The slow key takes as many as may get ready to wait: what it sends in a second.
    assert 0.5 < max(blind) < 1.5
    assert max(seeing) < 0.1


def barred_call() -> Call:
    """A call for a model that the first endpoint does not have."""
    first = frozenset({"key-0"})
    return Call(avoid=first, barred=first)


@pytest.mark.parametrize("waits", [False, True])
def test_a_call_ends_when_no_endpoint_that_it_may_use_is_left(waits: bool) -> None:
    async def refuse(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.0)
        writer.write(answer(b"{}", status=401))

    async def main() -> None:
        first = Window(100)
        async with RawServer(first) as one, RawServer(refuse) as two:
            pool = pool_of([one, two], Attempts(), concurrency=1 if waits else 8)
            calls = [pool.send(ask(number), barred_call()) for number in range(4)]
            outcomes = await asyncio.gather(*calls, pool.send(ask(4), Call()))
            assert {type(one.error) for one in outcomes[:4]} == {Refused}
            later = await pool.send(ask(5), barred_call())
            assert isinstance(later.error, Refused)
            assert pool.has_room(0.0, avoid=frozenset({"key-0"}))
            await pool.aclose()
        assert outcomes[4].is_success
        assert len(first.sent) == 1

    virtual_run(main())


def test_a_call_waits_for_the_only_endpoint_that_it_may_use_until_that_is_given_up() -> None:
    async def main() -> None:
        first = Window(100)
        async with RawServer(first) as one, RawServer(first) as two:
            pool = pool_of([one, two], Attempts(), concurrency=8)
            await two.stop()
            waiting = asyncio.create_task(pool.send(ask(0), barred_call()))
            await asyncio.sleep(30.0)
            # Others are not refused with it.
            assert (await pool.send(ask(1), Call())).is_success
            outcome = await waiting
            await pool.aclose()
        assert isinstance(outcome.error, NoEndpoint | Disconnected)
        assert len(first.sent) == 1

    virtual_run(main())


def test_a_call_too_large_for_one_endpoint_is_not_sent_to_another_that_it_must_not_use() -> None:
    async def main() -> None:
        servers = [Window(100) for _ in range(3)]
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(RawServer(one)) for one in servers]
            pool = pool_of(urls, Attempts(), tokens=["900/1s", "100/1s", "900/1s"])
            message = {"role": "user", "content": "x" * 2000}
            large = Request(body={"model": "m", "messages": [message], "max_tokens": 1})
            for _ in range(8):
                assert (await pool.send(large, barred_call())).is_success
            await pool.aclose()
        assert [len(one.sent) for one in servers] == [0, 0, 8]

    virtual_run(main())


def test_calls_that_wait_are_withdrawn_when_the_endpoints_change() -> None:
    async def main() -> None:
        async with RawServer(Window(100)) as server:
            pool = pool_of([server], Attempts(), concurrency=1)
            calls = [asyncio.create_task(pool.send(ask(number), Call())) for number in range(3)]
            await asyncio.sleep(LATENCY_S / 2)
            pool.move()
            outcomes = await asyncio.gather(*calls)
            await pool.aclose()
        assert outcomes[0].is_success
        assert {type(one.error) for one in outcomes[1:]} == {Withdrawn}

    virtual_run(main())


class Moody:
    """A server that refuses everything while `refusal` is set, and answers otherwise."""

    def __init__(self) -> None:
        self.refusal: bytes | None = None
        self.refused_s: list[float] = []
        self.asked_s: list[float] = []

    async def __call__(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        self.asked_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.1)
        if self.refusal is not None:
            self.refused_s.append(asyncio.get_running_loop().time())
        writer.write(self.refusal or answer(chat("yes")))


class Played(NamedTuple):
    """What became of the rows of a pool, and of its first endpoint."""

    outcomes: list[Outcome]
    states: list[Health]
    first: Moody
    asked: int


async def play(
    count: int,
    disturb: Callable[[PoolMember, Moody], Awaitable[None]],
    *,
    rows: int = 250,
    **limits: object,
) -> Played:
    """Rows through a pool of `count` endpoints, of which the first is disturbed after 2 s.

    rows: for each endpoint.
    """
    loop, handlers = asyncio.get_running_loop(), [Moody() for _ in range(count)]
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(RawServer(one)) for one in handlers]
        pool = pool_of(servers, Attempts(), concurrency=2, **limits)
        member, states = pool.members[0], list[Health]()
        running = asyncio.create_task(run_rows(pool, rows * count, at_once=6 * count))

        async def watch() -> None:
            while not running.done():
                state = member.health(loop.time())
                if states[-1:] != [state]:
                    states.append(state)
                await asyncio.sleep(0.02)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(2.0)
        await disturb(member, handlers[0])
        outcomes = await running
        await watching
        assert pool.queued == 0
        await pool.aclose()
        return Played(outcomes, states, handlers[0], sum(len(one.seen) for one in servers))


@pytest.mark.parametrize("count", [1, 3])
def test_a_pool_of_one_survives_the_failure_of_its_endpoint_as_any_other(count: int) -> None:
    async def fail(member: PoolMember, first: Moody) -> None:
        first.refusal = answer(b"{}", status=500)
        await asyncio.sleep(6.0)
        first.refusal = None

    async def main() -> None:
        played = await play(count, fail)
        assert all(one.is_success for one in played.outcomes)
        assert played.states == [Health.READY, Health.DEGRADED, Health.WARMING, Health.READY]
        # Without a breaker it would be asked 120 times.
        assert 0 < len(played.first.refused_s) <= 60

    virtual_run(main())


@pytest.mark.parametrize("count", [1, 3])
def test_a_pool_of_one_waits_for_its_parked_endpoint_as_any_other(count: int) -> None:
    async def park(member: PoolMember, first: Moody) -> None:
        first.refusal = answer(b"{}", status=429, Retry_After="5")
        await asyncio.sleep(4.0)
        first.refusal = None

    async def main() -> None:
        played = await play(count, park)
        begun_s = played.first.refused_s[0]
        assert all(one.is_success for one in played.outcomes)
        assert played.states == [Health.READY]
        # Those on the wire.
        assert len(played.first.refused_s) <= 2
        later = [at_s for at_s in played.first.asked_s if at_s > begun_s]
        assert min(later) == pytest.approx(begun_s + 5.0, abs=0.5)
        assert len(later) > 50

    virtual_run(main())


@pytest.mark.parametrize("count", [1, 3])
def test_a_pool_of_one_takes_back_unsent_calls_as_any_other(count: int) -> None:
    withdrawn = 0

    async def withdraw(member: PoolMember, first: Moody) -> None:
        nonlocal withdrawn
        for _ in range(20):
            withdrawn += member.backend.withdraw()
            await asyncio.sleep(0.11)

    async def main() -> None:
        played = await play(count, withdraw, rows=40, requests="4/1s")
        assert withdrawn > 0
        assert all(one.is_success for one in played.outcomes)
        # It costs the rows nothing.
        assert {one.attempts for one in played.outcomes} == {1}
        assert played.asked == len(played.outcomes) == 40 * count
        assert played.states == [Health.READY]

    virtual_run(main())
