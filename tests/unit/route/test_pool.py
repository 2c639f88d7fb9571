"""A pool keeps its endpoints full, and loses no call with any of them."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from msgspec import structs

from redline.calls import Call, Request, Retry, RetryPolicy
from redline.errors import (
    BadReply,
    CallError,
    ConfigError,
    Disconnected,
    RateLimited,
    Refused,
    Rejected,
    ServerFailed,
    TimedOut,
)
from redline.route import Pool, Seat, strategy_of
from redline.route.balance import REVIEW_S
from redline.route.watch import Watchable
from redline.testing import virtual_run
from redline.waist import Health, Load, Outcome, Sink
from support.fleet import LoopClock, ModelServer

CLOCK = LoopClock()
HTTP_500 = ServerFailed("HTTP 500", status=500)
HTTP_429 = RateLimited("HTTP 429", status=429)


def pool_of(
    servers: Sequence[ModelServer], strategy: str = "p2c", pages: Watchable | None = None
) -> Pool:
    def seat(server: ModelServer) -> Seat:
        def make(on_room: Callable[[], None]) -> ModelServer:
            return server

        return Seat(name=server.name, make=make, pages=pages)

    draw = random.Random(1)
    return Pool(
        [seat(server) for server in servers], strategy_of(strategy, draw), seed=1, clock=CLOCK
    )


async def run_rows(
    pool: Pool, rows: int, *, at_once: int = 64, policy: RetryPolicy | None = None
) -> list[Outcome]:
    """The outcomes of so many rows of 0.05 to 0.15 s, `at_once` at any time."""
    backend = Retry(pool, policy, clock=CLOCK, seed=1)
    numbers, outcomes = iter(range(rows)), list[Outcome]()
    draw = random.Random(2)

    async def work() -> None:
        for _ in numbers:
            request = Request(body={"work": draw.uniform(0.05, 0.15)})
            outcomes.append(await backend.send(request, Call()))

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    return outcomes


def first_endpoints(outcomes: Sequence[Outcome]) -> Counter[str]:
    return Counter(outcome.tried[0].endpoint for outcome in outcomes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [HTTP_500, Disconnected("reset"), BadReply("HTML"), TimedOut("attempt", 1.0)],
    ids=["500", "reset", "html", "timeout"],
)
def test_an_endpoint_that_fails_fast_sees_few_first_attempts_and_is_back_soon(
    error: CallError,
) -> None:
    async def main() -> None:
        begun_s = asyncio.get_running_loop().time()

        def fails(now_s: float, number: int) -> CallError | None:
            return error if 2 <= now_s - begun_s < 20 else None

        servers = [ModelServer(f"s{n}", slots=16) for n in range(3)]
        servers.append(ModelServer("bad", slots=16, fails=fails, fails_in_s=0.001))
        outcomes = await run_rows(pool_of(servers), 24_000)
        assert all(outcome.is_success for outcome in outcomes)
        assert 0 < servers[-1].failed <= 200
        assert servers[-1].calls - servers[-1].failed > 1_000

    virtual_run(main())


class Steady(ModelServer):
    """Says how many calls it takes. asked: how often whether it takes one more."""

    asked = 0

    def has_room(self, now_s: float, coming: int = 0) -> bool:
        self.asked += 1
        return super().has_room(now_s, coming)


@pytest.mark.parametrize("at_once", [1, 20, 64])
def test_endpoints_that_say_how_many_calls_they_take_are_filled_and_seldom_asked(
    at_once: int,
) -> None:
    async def main() -> None:
        servers = [Steady(f"s{n}", slots=8, bound=8) for n in range(4)]
        pool = pool_of(servers)
        outcomes = await run_rows(pool, 4_000, at_once=at_once)
        assert all(outcome.is_success for outcome in outcomes)
        took_s = 400 / min(at_once, 32)
        assert asyncio.get_running_loop().time() <= 1.05 * took_s + 0.15
        if at_once < 32:
            assert sum(server.asked for server in servers) < 400
        assert pool.load(CLOCK.now_s()).in_flight == 0

    virtual_run(main())


@pytest.mark.parametrize("strategy", ["p2c", "cheapest"])
def test_equally_good_endpoints_take_turns(strategy: str) -> None:
    async def main() -> None:
        servers = [ModelServer(f"s{n}", slots=8) for n in range(12)]
        pool = pool_of(servers, strategy)

        async def work() -> None:
            for _ in range(100):
                await pool.send(Request(body={"work": 0.125}), Call())

        await asyncio.gather(*(work() for _ in range(24)))
        calls = [server.calls for server in servers]
        assert min(calls) >= 160, calls
        assert max(calls) <= 240, calls

    virtual_run(main())


def test_the_latency_of_every_answer_counts_and_none_is_kept_for_much_longer_than_a_review() -> (
    None
):
    async def main() -> None:
        servers = [ModelServer(f"s{n}", slots=8) for n in range(2)]
        pool, kept = pool_of(servers), list[int]()
        for _ in range(6_400):
            outcome = await pool.send(Request(body={"work": 1 / 64}), Call())
            assert outcome.is_success
            kept.append(sum(len(member.fresh_s) for member in pool.members))
        assert 32 < max(kept) <= 64 * REVIEW_S + 2
        assert (pool.traffic.answered, pool.traffic.served_s) == (6_400, pytest.approx(100.0))
        assert [member.latency_s for member in pool.members] == [1 / 64] * 2

    virtual_run(main())


def test_an_endpoint_that_has_failed_a_call_is_asked_again_whether_it_has_room() -> None:
    """It takes any number of calls until one fails after 10 s, and then none for 5 s."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        begun_s, closed_s, given = loop.time(), list[float](), list[float]()

        class Closing(ModelServer):
            def has_room(self, now_s: float, coming: int = 0) -> bool:
                return not closed_s or now_s >= closed_s[0] + 5

            def load(self, now_s: float, request: Request | None = None) -> Load:
                steady = 1_000 if self.has_room(now_s) else 0
                return structs.replace(super().load(now_s, request), steady=steady)

            async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
                given.append(loop.time())
                return await super().send(request, call, sink)

        def fails(now_s: float, number: int) -> CallError | None:
            if closed_s or now_s < begun_s + 10:
                return None
            closed_s.append(now_s)
            assert closing.on_room is not None
            loop.call_later(5.01, closing.on_room)
            return HTTP_500

        closing = Closing("closing", slots=100, fails=fails)
        pool = pool_of([ModelServer("good", slots=100)])
        pool.add(Seat(name=closing.name, make=closing.seated))
        outcomes = await run_rows(pool, 8_000, at_once=32)
        assert all(outcome.is_success for outcome in outcomes)
        assert not [at_s for at_s in given if closed_s[0] < at_s < closed_s[0] + 5]
        assert len([at_s for at_s in given if at_s > closed_s[0] + 5]) > 100

    virtual_run(main())


@pytest.mark.slow
@pytest.mark.parametrize("timeout_s", [1.0, 60.0])
def test_one_that_never_answers_costs_few_calls_and_is_back_soon(timeout_s: float) -> None:
    async def main() -> None:
        begun_s = asyncio.get_running_loop().time()
        over_s = begun_s + 2 + 1.5 * timeout_s
        timed_out = TimedOut("attempt", timeout_s)

        def fails(now_s: float, number: int) -> CallError | None:
            return timed_out if begun_s + 2 <= now_s < over_s else None

        servers = [ModelServer(f"s{n}", slots=16) for n in range(3)]
        bad = ModelServer("bad", slots=16, fails=fails, fails_in_s=timeout_s)
        pool = pool_of([*servers, bad])
        running = asyncio.create_task(run_rows(pool, 10**9))
        await asyncio.sleep(over_s - begun_s)
        # Those in flight when it begins, and one for each pause.
        assert 0 < bad.failed <= 64 + 6 + timeout_s / 15
        before = bad.calls
        await asyncio.sleep(30)
        assert bad.calls > before + 1_000
        running.cancel()
        await asyncio.wait([running])

    virtual_run(main())


def test_one_call_at_a_time_tries_whether_it_works_again_though_others_wait() -> None:
    async def main() -> None:
        servers = [
            ModelServer("good", slots=8, bound=8),
            ModelServer("bad", slots=8, bound=8, fails=lambda *_: HTTP_500, fails_in_s=0.1),
        ]
        outcomes = await run_rows(pool_of(servers), 4_000)
        assert all(outcome.is_success for outcome in outcomes)
        took_s = 4_000 / 80
        # Seven to notice it, those that were in flight then, and one after each pause.
        assert servers[1].failed <= 7 + 8 + 4 + took_s / 15

    virtual_run(main())


def test_an_endpoint_that_fails_now_and_then_is_degraded() -> None:
    async def main() -> None:
        draw = random.Random(3)
        servers = [ModelServer(f"s{n}", slots=16) for n in range(3)]
        servers.append(
            ModelServer("bad", slots=16, fails=lambda *_: HTTP_500 if draw.random() < 0.2 else None)
        )
        outcomes = await run_rows(pool_of(servers), 20_000)
        assert all(outcome.is_success for outcome in outcomes)
        assert servers[-1].failed <= 200

    virtual_run(main())


def test_if_all_fail_alike_none_is_taken_out() -> None:
    async def main() -> None:
        draw = random.Random(4)

        def server(name: str) -> ModelServer:
            return ModelServer(
                name,
                slots=16,
                fails=lambda *_: HTTP_500 if draw.random() < 0.3 else None,
                fails_in_s=0.1,
            )

        servers = [server(f"s{n}") for n in range(4)]
        pool = pool_of(servers)
        begun_s = asyncio.get_running_loop().time()
        await run_rows(pool, 6_000)
        took_s = asyncio.get_running_loop().time() - begun_s
        busiest, idlest = max(one.calls for one in servers), min(one.calls for one in servers)
        assert idlest > 0.9 * busiest, took_s

    virtual_run(main())


class Page:
    """A health page that is well."""

    has_metrics = False
    has_health = True

    async def figures(self) -> None:
        """There are none."""

    async def is_well(self) -> bool:
        return True

    async def aclose(self) -> None:
        """There is nothing to close."""


class FailingPage(Page):
    """A health page that is never well."""

    async def is_well(self) -> bool:
        return False


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_if_all_fail_alike_breakers_cost_no_answers(seed: int) -> None:
    """Each has a health page: one that is degraded takes no calls before its page was read."""

    async def main() -> None:
        draw = random.Random(seed)

        def fails(*_: object) -> CallError | None:
            return HTTP_500 if draw.random() < 0.3 else None

        servers = [
            ModelServer(f"s{n}", slots=16, bound=16, fails=fails, fails_in_s=0.1) for n in range(4)
        ]
        pool = pool_of(servers, pages=Page())
        # Retries are not rationed, so that all slots are in use.
        policy = RetryPolicy(share=1.0, floor_per_s=10_000.0, base_s=0.01)
        await run_rows(pool, 4_000, policy=policy)
        took_s = asyncio.get_running_loop().time()
        await pool.aclose()
        # The rest is for warming up, and for the last retries.
        assert took_s <= 1.2 * 4_000 * 0.1 / 0.7 / 64

    virtual_run(main())


class Parking(ModelServer):
    """A server that gets no calls until a given time, which the Retry-After of a 429 sets, too."""

    parked_until_s = -math.inf

    def has_room(self, now_s: float, coming: int = 0) -> bool:
        return now_s >= self.parked_until_s and super().has_room(now_s, coming)

    def load(self, now_s: float, request: Request | None = None) -> Load:
        load = super().load(now_s, request)
        return structs.replace(load, steady=0, parked_until_s=self.parked_until_s)

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        outcome = await super().send(request, call, sink)
        if isinstance(outcome.error, RateLimited) and outcome.error.retry_after_s:
            until_s = CLOCK.now_s() + outcome.error.retry_after_s
            self.parked_until_s = max(self.parked_until_s, until_s)
        return outcome


@pytest.mark.parametrize(("share", "most_s"), [(0.2, 30), (0.6, 75), (1.0, 75)])
def test_while_the_others_are_parked_only_one_that_fails_most_calls_is_degraded(
    share: float, most_s: float
) -> None:
    async def main() -> None:
        draw, begun_s = random.Random(1), CLOCK.now_s()
        parked = Parking("parked", slots=64)
        parked.parked_until_s = begun_s + 60
        failing = ModelServer(
            "failing",
            slots=64,
            fails=lambda *_: HTTP_500 if draw.random() < share else None,
            fails_in_s=0.1,
        )
        outcomes = await run_rows(pool_of([parked, failing]), 1_000, at_once=16)
        assert all(outcome.is_success for outcome in outcomes)
        assert CLOCK.now_s() - begun_s < most_s
        # While the other one works soon again, rows must not use up their retries here.
        assert share < 0.5 or failing.failed < 150

    virtual_run(main())


STRATEGIES = ("p2c", "least_tokens", "prefix", "cheapest", "round_robin", "weighted_score")


@pytest.mark.parametrize("bound", [0, 16])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_that_refuses_at_once_without_a_time_to_wait_gets_few_calls_and_is_back_soon(
    strategy: str, bound: int
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        over_s = loop.time() + 5

        def fails(now_s: float, number: int) -> CallError | None:
            return HTTP_429 if now_s < over_s else None

        servers = [ModelServer(f"s{n}", slots=64, bound=bound) for n in range(3)]
        bad = ModelServer("bad", slots=64, bound=bound, fails=fails, fails_in_s=0.001)
        pool = pool_of([bad, *servers], strategy)
        running = asyncio.create_task(run_rows(pool, 10**9))
        await asyncio.sleep(5)
        # Those that come before the first refusal, and one at the end of each pause.
        assert 0 < bad.failed <= 64 + 7
        assert sum(server.calls for server in servers) > 0.9 * 5 * 48 / 0.1
        await asyncio.sleep(2 * 5 + 1)
        assert bad.calls - bad.failed > 100
        running.cancel()
        await asyncio.wait([running])

    virtual_run(main())


def test_one_that_refuses_more_than_eight_at_once_keeps_eight() -> None:
    async def main() -> None:
        def fails(now_s: float, number: int) -> CallError | None:
            return HTTP_429 if few.in_flight > 8 else None

        few = ModelServer("few", slots=8, fails=fails, fails_in_s=0.001)
        servers = [ModelServer(f"s{n}", slots=64) for n in range(3)]
        outcomes = await run_rows(pool_of([few, *servers]), 6_000)
        assert all(outcome.is_success for outcome in outcomes)
        took_s = asyncio.get_running_loop().time()
        assert took_s <= 1.1 * 6_000 * 0.1 / 64
        assert few.busy_s >= 0.85 * 8 * took_s
        assert few.failed <= 0.05 * 6_000

    virtual_run(main())


@pytest.mark.parametrize("count", [1, 3])
def test_if_all_refuse_some_calls_go_on(count: int) -> None:
    async def main() -> None:
        def server(name: str) -> ModelServer:
            def fails(now_s: float, number: int) -> CallError | None:
                return HTTP_429 if one.in_flight > 8 else None

            one = ModelServer(name, slots=8, fails=fails, fails_in_s=0.001)
            return one

        servers = [server(f"s{n}") for n in range(count)]
        running = asyncio.create_task(run_rows(pool_of(servers), 10**9))
        await asyncio.sleep(20)
        running.cancel()
        await asyncio.wait([running])
        assert sum(server.busy_s for server in servers) >= 0.9 * 8 * count * 20

    virtual_run(main())


def test_if_all_fail_for_a_while_calls_wait_longer_each_time_and_none_is_lost() -> None:
    async def main() -> None:
        begun_s = asyncio.get_running_loop().time()

        def fails(now_s: float, number: int) -> CallError | None:
            return HTTP_500 if 1 <= now_s - begun_s < 7 else None

        servers = [ModelServer(f"s{n}", slots=16, fails=fails) for n in range(4)]
        outcomes = await run_rows(pool_of(servers), 800, at_once=8)
        assert all(outcome.is_success for outcome in outcomes)

    virtual_run(main())


@pytest.mark.parametrize("strategy", ["p2c", "cheapest"])
def test_once_all_have_failed_one_that_works_again_is_found_whatever_the_strategy(
    strategy: str,
) -> None:
    """It has the smaller weight and the higher price; the other one stays broken."""

    async def main() -> None:
        begun_s = asyncio.get_running_loop().time()

        def fails(end_s: float) -> Callable[[float, int], CallError | None]:
            return lambda now_s, _: Disconnected("reset") if 1 <= now_s - begun_s < end_s else None

        broken = ModelServer("broken", slots=16, fails=fails(math.inf))
        back = ModelServer("back", slots=16, fails=fails(6.0))
        seats = [
            Seat(name="broken", make=broken.seated, weight=2.0),
            Seat(name="back", make=back.seated, price=1.0),
        ]
        pool = Pool(seats, strategy_of(strategy, random.Random(1)), seed=1, clock=CLOCK)
        outcomes = await run_rows(pool, 400, at_once=8)
        assert all(outcome.is_success for outcome in outcomes)

    virtual_run(main())


def test_once_all_have_failed_a_single_call_tries_each_even_if_many_end_at_the_same_moment() -> (
    None
):
    """All calls go to the cheaper one otherwise."""

    async def main() -> None:
        late = TimedOut("attempt", 1.0)
        servers = [
            ModelServer(name, slots=64, fails=lambda *_: late, fails_in_s=1.0) for name in "ab"
        ]
        seats = [
            Seat(name=one.name, make=one.seated, price=price) for price, one in enumerate(servers)
        ]
        pool = Pool(seats, strategy_of("cheapest", random.Random(1)), most=40, clock=CLOCK, seed=1)
        running = asyncio.create_task(run_rows(pool, 10**9, at_once=400))
        await asyncio.sleep(3)
        begun = servers[1].calls
        await asyncio.sleep(8)
        running.cancel()
        await asyncio.wait([running])
        assert 1 <= servers[1].calls - begun <= 3

    virtual_run(main())


def test_rows_without_a_retry_left_try_no_broken_endpoint() -> None:
    """All endpoints fail for a while; then one works again, and the others are tried at times."""

    async def main() -> None:
        begun_s = CLOCK.now_s()

        def fails(end_s: float) -> Callable[[float, int], CallError | None]:
            return lambda now_s, _: HTTP_500 if 1 <= now_s - begun_s < end_s else None

        broken = [
            ModelServer(f"broken{n}", slots=64, fails=fails(math.inf), fails_in_s=0.05)
            for n in range(4)
        ]
        back = ModelServer("back", slots=64, bound=64, fails=fails(50.0), fails_in_s=0.05)
        outcomes = await run_rows(pool_of([*broken, back]), 2_000)
        lost = [outcome.tried[-1] for outcome in outcomes if not outcome.is_success]
        assert len(lost) < 30
        assert not [last for last in lost if last.complete_s - begun_s > 50.5]

    virtual_run(main())


def test_a_key_that_is_refused_in_mid_run_loses_no_row() -> None:
    async def main() -> None:
        refused = Refused("HTTP 401", status=401)
        servers = [
            ModelServer("good", slots=16, bound=16),
            ModelServer("bad", slots=16, bound=16, fails=lambda _, n: refused if n > 50 else None),
        ]
        pool = pool_of(servers)
        outcomes = await run_rows(pool, 1_000)
        assert all(outcome.is_success for outcome in outcomes)
        states = {member.name: member.health(0.0) for member in pool.members}
        assert states == {"good": Health.READY, "bad": Health.GONE}

    virtual_run(main())


class BehindProxy(ModelServer):
    """Its proxy refuses the connection, so that nothing is written."""

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        outcome = await super().send(request, call, sink)
        outcome.tried = tuple(structs.replace(each, sent_s=None) for each in outcome.tried)
        return outcome


@pytest.mark.parametrize(("kind", "refused"), [(ModelServer, 1), (BehindProxy, 0)])
def test_what_was_refused_costs_nothing_if_it_was_written(
    kind: type[ModelServer], refused: int
) -> None:
    async def main() -> None:
        error = Refused("HTTP 407", status=407)
        bad = kind("bad", slots=1, bound=1, fails=lambda _, n: error)
        pool = pool_of([bad, ModelServer("good", slots=1, bound=1)])
        calls = [Call(), Call()]
        request = Request(body={"work": 0.1})
        outcomes = await asyncio.gather(*(pool.send(request, call) for call in calls))
        assert all(outcome.is_success for outcome in outcomes)
        assert bad.calls == 1
        assert sum(call.refused for call in calls) == refused

    virtual_run(main())


def test_the_last_key_that_is_refused_ends_all_calls() -> None:
    async def main() -> None:
        refused = Refused("HTTP 401", status=401)
        servers = [
            ModelServer(name, slots=4, bound=4, fails=lambda _, n: refused if n > 50 else None)
            for name in ("a", "b")
        ]
        outcomes = await run_rows(pool_of(servers), 300)
        assert len(outcomes) == 300
        kinds = Counter(type(outcome.error) for outcome in outcomes)
        assert kinds[Refused] == 200

    virtual_run(main())


def test_an_error_of_a_row_is_nothing_against_its_endpoint() -> None:
    async def main() -> None:
        rejected = Rejected("HTTP 400", status=400)
        servers = [
            ModelServer("a", slots=16),
            ModelServer("b", slots=16, fails=lambda *_: rejected, fails_in_s=0.1),
        ]
        await run_rows(pool_of(servers), 2_000)
        assert servers[1].calls > 700

    virtual_run(main())


def test_a_row_that_an_endpoint_does_not_serve_goes_to_another() -> None:
    async def main() -> None:
        missing = Rejected("HTTP 404", status=404)
        servers = [
            ModelServer("a", slots=4),
            ModelServer("b", slots=16, fails=lambda _, n: missing if n > 1 else None),
        ]
        outcomes = await run_rows(pool_of(servers), 200)
        assert Counter(outcome.endpoint for outcome in outcomes) == {"a": 199, "b": 1}
        assert servers[1].calls > 100
        # If it is the last one left, its answer is the outcome.
        servers[0].fails = lambda *_: Refused("HTTP 401", status=401)
        outcomes = await run_rows(pool_of(servers), 20)
        assert {type(outcome.error) for outcome in outcomes} == {Rejected}
        assert len(outcomes) == 20

    virtual_run(main())


def test_an_endpoint_that_rejects_all_calls_gets_few_until_it_answers_one() -> None:
    async def main() -> None:
        begun_s = asyncio.get_running_loop().time()

        def missing(now_s: float, number: int) -> CallError | None:
            return Rejected("HTTP 404", status=404) if now_s - begun_s < 10 else None

        servers = [ModelServer("a", slots=4), ModelServer("b", slots=4, fails=missing)]
        outcomes = await run_rows(pool_of(servers), 2_000, at_once=8)
        assert all(outcome.is_success for outcome in outcomes)
        assert servers[1].failed < 20
        assert servers[1].calls > 500

    virtual_run(main())


def test_of_three_endpoints_two_that_reject_all_calls_get_few() -> None:
    async def main() -> None:
        missing = Rejected("HTTP 404", status=404)
        bad = [ModelServer(name, slots=4, fails=lambda *_: missing) for name in "bc"]
        outcomes = await run_rows(pool_of([ModelServer("a", slots=4), *bad]), 2_000, at_once=8)
        assert all(outcome.is_success for outcome in outcomes)
        assert sum(server.calls for server in bad) < 60

    virtual_run(main())


@pytest.mark.parametrize("share", [1, 5])
def test_a_row_that_one_endpoint_rejects_does_not_wait_for_the_pause_of_another(share: int) -> None:
    async def main() -> None:
        now_s = asyncio.get_running_loop().time
        begun_s, missing = now_s(), Rejected("HTTP 404", status=404)
        servers = [
            ModelServer("a", slots=4, fails=lambda _, n: missing if n % share == 0 else None),
            ModelServer("b", slots=4, fails=lambda *_: missing),
        ]
        outcomes = await run_rows(pool_of(servers), 500, at_once=8)
        failed = [outcome for outcome in outcomes if not outcome.is_success]
        assert len(failed) == 500 // share
        # Its four slots are nearly always busy.
        assert now_s() - begun_s < servers[0].busy_s / 4 + 5

    virtual_run(main())


def test_a_failed_call_does_not_wait_long_for_another_endpoint_while_its_own_is_free() -> None:
    async def main() -> None:
        def fails(now_s: float, number: int) -> CallError | None:
            return HTTP_500 if number % 30 == 0 else None

        flaky = ModelServer("flaky", slots=64, fails=fails)
        slow = ModelServer("slow", speed=0.01, bound=1)
        await run_rows(pool_of([flaky, slow]), 1_000)
        # The slow one takes 10 s for each call.
        assert asyncio.get_running_loop().time() < 25
        assert slow.calls <= 2

    virtual_run(main())


def test_a_failed_call_does_not_return_to_an_endpoint_that_fails_all_calls() -> None:
    async def main() -> None:
        broken = ModelServer("broken", slots=64, fails=lambda *_: HTTP_500, fails_in_s=0.01)
        slow = ModelServer("slow", speed=0.05, bound=1)
        policy = RetryPolicy(max_retries=1)
        outcomes = await run_rows(pool_of([broken, slow]), 30, at_once=4, policy=policy)
        assert all(outcome.is_success for outcome in outcomes)

    virtual_run(main())


def test_a_call_that_only_one_endpoint_fails_is_answered_by_another_one_that_is_busy() -> None:
    class Picky(ModelServer):
        async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
            is_refused = request.body["work"] < 0.055
            self.fails = lambda *_: HTTP_500 if is_refused else None
            return await super().send(request, call, sink)

    async def main() -> None:
        slow = ModelServer("slow", speed=0.01, bound=1)
        outcomes = await run_rows(pool_of([Picky("picky", slots=64), slow]), 400, at_once=8)
        assert all(outcome.is_success for outcome in outcomes)

    virtual_run(main())


def test_calls_that_are_refused_with_429s_do_not_wait_ever_longer_for_another_endpoint() -> None:
    async def main() -> None:
        busy = ModelServer("busy", slots=64, fails=lambda _, n: HTTP_429 if n % 2 else None)
        slow = ModelServer("slow", speed=0.01, bound=1)
        outcomes = await run_rows(pool_of([busy, slow]), 300, at_once=16)
        assert all(outcome.is_success for outcome in outcomes)
        assert asyncio.get_running_loop().time() < 60

    virtual_run(main())


def asked_to_wait(wait_s: float) -> RateLimited:
    return RateLimited("HTTP 429", status=429, retry_after_s=wait_s)


@pytest.mark.parametrize(
    ("error", "ends_s", "calls"),
    [
        (asked_to_wait(3.0), 4.0, [2, 1]),
        (HTTP_500, 1.0, [2, 1]),
        (asked_to_wait(1e4), 3601, [1, 2]),
    ],
    ids=["parked", "failed", "parked for longer"],
)
def test_a_call_that_is_asked_to_wait_goes_to_another_endpoint_if_that_one_is_free_sooner(
    error: CallError, ends_s: float, calls: list[int]
) -> None:
    """Each endpoint fails the call once: the first one with `error`, the other for an hour."""

    async def main() -> None:
        errors = {"first": error, "other": asked_to_wait(3600.0)}
        servers = [
            Parking(name, fails=lambda _, number, one=one: one if number == 1 else None)
            for name, one in errors.items()
        ]
        seats = [
            Seat(name=one.name, make=one.seated, price=price) for price, one in enumerate(servers)
        ]
        pool = Pool(seats, strategy_of("cheapest", random.Random(1)), clock=CLOCK, seed=1)
        begun_s = CLOCK.now_s()
        outcome = await Retry(pool, clock=CLOCK, seed=1).send(Request(body={"work": 1.0}), Call())
        assert outcome.is_success
        assert CLOCK.now_s() - begun_s == pytest.approx(ends_s)
        assert [server.calls for server in servers] == calls

    virtual_run(main())


def test_rows_that_are_often_asked_to_wait_are_spread_though_another_endpoint_might_be_tried() -> (
    None
):
    """The other endpoint is broken, so the rows would all come when the first one is free again."""

    async def main() -> None:
        arrivals_s = list[float]()

        def refuses(now_s: float, number: int) -> CallError | None:
            arrivals_s.append(now_s)
            return asked_to_wait(10.0) if number <= 40 else None

        limited = Parking("limited", fails=refuses)
        down = ModelServer("down")
        seats = [
            Seat(name="limited", make=limited.seated),
            Seat(name="down", make=down.seated, pages=FailingPage()),
        ]
        pool = Pool(seats, strategy_of("p2c", random.Random(1)), clock=CLOCK, seed=1)
        outcomes = await run_rows(pool, 20, at_once=20, policy=RetryPolicy(max_retries=1))
        await pool.aclose()
        assert all(outcome.is_success for outcome in outcomes)
        assert max(Counter(arrivals_s[40:]).values()) == 1

    virtual_run(main())


def test_names_are_unique_and_weights_positive() -> None:
    with pytest.raises(ConfigError, match="two endpoints of a pool are named a") as caught:
        pool_of([ModelServer("b"), ModelServer("a"), ModelServer("a")])
    assert caught.value.where == "its endpoints 2 and 3"
    with pytest.raises(ConfigError, match="the weight of endpoint a must be above 0"):
        Seat(name="a", make=lambda _: ModelServer("a"), weight=0)


def test_a_call_that_all_its_endpoints_fail_is_tried_on_each_of_them() -> None:
    async def main() -> None:
        servers = [
            ModelServer(name, fails=lambda *_: HTTP_500, fails_in_s=0.1) for name in ("a", "b", "c")
        ]
        retry = Retry(pool_of(servers), clock=CLOCK, seed=1)
        outcome = await retry.send(Request(body={"work": 1.0}), Call())
        assert outcome.error is not None
        assert outcome.attempts == 9
        assert {attempt.endpoint for attempt in outcome.tried[:3]} == {"a", "b", "c"}

    virtual_run(main())


class Chaos:
    """Servers that fail, hang and refuse at random; calls that are cancelled at random."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.servers = [
            ModelServer(
                f"s{n}",
                slots=self.draw.choice([1, 4, 16]),
                bound=self.draw.choice([0, 1, 4, 16]),
                fails=self.fails,
                fails_in_s=self.draw.choice([0.0, 0.01, 1.0]),
            )
            for n in range(4)
        ]
        self.pool = pool_of(self.servers)
        self.retry = Retry(self.pool, clock=CLOCK, seed=seed)
        self.share = 0.0

    def fails(self, now_s: float, number: int) -> CallError | None:
        if self.draw.random() >= self.share:
            return None
        return self.draw.choice(
            [HTTP_500, Disconnected("reset"), Rejected("HTTP 400"), BadReply("HTML")]
        )

    async def play(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(32):
                group.create_task(self.work())
            group.create_task(self.disturb())

    async def disturb(self) -> None:
        for _ in range(10):
            self.share = self.draw.choice([0.0, 0.1, 1.0])
            await asyncio.sleep(self.draw.uniform(0, 3))
            if self.draw.random() < 0.3 and len(self.pool.members) > 2:
                await self.pool.remove(self.draw.choice(self.pool.members).name)
        self.share = 0.0

    async def work(self) -> None:
        for _ in range(10):
            request = Request(body={"work": self.draw.expovariate(10)})
            call = Call(priority=self.draw.choice([0, 0, 1]))
            sending = asyncio.create_task(self.retry.send(request, call))
            if self.draw.random() < 0.3:
                await asyncio.sleep(self.draw.choice([0, 0.001, 0.1]))
                sending.cancel()
            ended = await asyncio.wait([sending])
            assert ended


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_held_after_cancels_failures_and_removals(seed: int) -> None:
    async def main() -> None:
        chaos = Chaos(seed)
        await chaos.play()
        for member in chaos.pool.members:
            assert (member.in_flight, member.coming) == (0, 0)
        load = chaos.pool.load(CLOCK.now_s())
        assert (load.in_flight, load.waiting) == (0, 0)
        # It works as before.
        await asyncio.sleep(60)
        assert (await chaos.retry.send(Request(body={"work": 0.1}), Call())).is_success
        await chaos.pool.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtual_run(main())


def test_a_call_does_not_wait_behind_one_that_avoids_the_only_free_endpoint() -> None:
    async def main() -> None:
        servers = [ModelServer("free", bound=2, slots=2), ModelServer("busy", bound=1)]
        pool = pool_of(servers)
        long = Request(body={"work": 100.0})
        async with asyncio.TaskGroup() as group:
            group.create_task(pool.send(long, Call(avoid=frozenset({"free"}))))
            waiting = group.create_task(pool.send(long, Call(avoid=frozenset({"free"}))))
            await asyncio.sleep(1)
            begun_s = CLOCK.now_s()
            outcome = await pool.send(Request(body={"work": 1.0}), Call())
            assert (outcome.endpoint, CLOCK.now_s() - begun_s) == ("free", 1.0)
            assert not waiting.done()

    virtual_run(main())


def test_a_pool_whose_endpoints_were_all_closed_is_used_in_another_loop() -> None:
    """The timers that would have opened them ended with the first loop."""

    class Parked(ModelServer):
        def has_room(self, now_s: float, coming: int = 0) -> bool:
            return now_s >= 5.0

        def load(self, now_s: float, request: Request | None = None) -> Load:
            return structs.replace(super().load(now_s, request), parked_until_s=5.0)

    pool = pool_of([Parked("a"), Parked("b")])

    async def first() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.send(Request(body={"work": 0.1}), Call()), 1.0)

    async def second() -> None:
        assert (await pool.send(Request(body={"work": 0.1}), Call())).is_success

    virtual_run(first())
    virtual_run(second(), start_s=10.0)
