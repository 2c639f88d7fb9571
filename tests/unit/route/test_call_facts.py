"""What strategies go by is supplied, and is gone when the calls are over."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from functools import cache

import pytest

from redline.calls import Call, Reply, Request
from redline.errors import ServerFailed
from redline.route import Pool, Seat, strategy_of
from redline.route.queue import MOST_PASSED
from redline.testing import virtual_run
from redline.waist import Load, Outcome, Sink
from support.fleet import CachingServer, LoopClock, ModelServer

CLOCK = LoopClock()
PREFILL_S = 0.1


class TokenServer(ModelServer):
    """Answers with a usage: `tokens` of output, on which it works a second for each 100."""

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        outcome = await super().send(request, call, sink)
        if outcome.reply is not None:
            outcome.reply = Reply(input_tokens=10, output_tokens=request.body["tokens"])
        return outcome

    def work_s(self, request: Request) -> float:
        return float(request.body["tokens"]) / 100


def pool_of(servers: Sequence[ModelServer], strategy: str) -> Pool:
    def seat(server: ModelServer) -> Seat:
        return Seat(name=server.name, make=lambda on_room: server)

    draw = random.Random(1)
    return Pool([seat(one) for one in servers], strategy_of(strategy, draw), seed=1, clock=CLOCK)


def short_or_long(draw: random.Random, **fields: object) -> Request:
    """One of two models, whose answers have 10 and 1,000 tokens."""
    model, tokens = draw.choice([("short", 10), ("long", 1_000)])
    return Request(body={"model": model, "messages": [], "tokens": tokens, **fields})


def test_least_tokens_spreads_the_tokens_and_not_the_calls() -> None:
    async def main(strategy: str) -> float:
        servers = [TokenServer(f"s{n}", slots=64) for n in range(4)]
        pool, draw = pool_of(servers, strategy), random.Random(1)
        # So that it knows how long the answers of each model are.
        for _ in range(100):
            await pool.send(short_or_long(draw), Call())
        async with asyncio.TaskGroup() as group:
            for _ in range(200):
                group.create_task(pool.send(short_or_long(draw), Call()))
            await asyncio.sleep(0.01)
            tokens = [one.tokens for one in pool.members]
        return max(tokens) / max(1.0, min(tokens))

    assert virtual_run(main("least_tokens")) < 1.1


@pytest.mark.parametrize("strategy", ["least_tokens", "room", "prefix"])
def test_nothing_is_left_when_calls_end_fail_or_are_cancelled(strategy: str) -> None:
    async def main() -> None:
        draw = random.Random(2)

        def fails(now_s: float, number: int) -> ServerFailed | None:
            return ServerFailed("HTTP 500", status=500) if draw.random() < 0.1 else None

        servers = [TokenServer(f"s{n}", slots=8, bound=8, fails=fails) for n in range(3)]
        pool = pool_of(servers, strategy)
        calls = set[asyncio.Task[Outcome]]()
        for number in range(3_000):
            request = short_or_long(draw, user=str(number))
            calls.add(asyncio.create_task(pool.send(request, Call())))
            if draw.random() < 0.3:
                draw.choice(sorted(calls, key=id)).cancel()
            if len(calls) > 40:
                _, calls = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            if number % 100 == 0:
                await asyncio.sleep(draw.random())
        await asyncio.gather(*calls, return_exceptions=True)
        assert [one.tokens for one in pool.members] == [0, 0, 0]
        assert [one.in_flight for one in pool.members] == [0, 0, 0]
        assert (pool.queued, pool.load(CLOCK.now_s()).in_flight) == (0, 0)

    virtual_run(main())


def test_an_endpoint_that_drains_tokens_faster_gets_more_of_them() -> None:
    async def main() -> None:
        servers = [TokenServer("fast", slots=64, speed=4.0), TokenServer("slow", slots=64)]
        pool, draw = pool_of(servers, "least_tokens"), random.Random(3)

        async def work(calls: int) -> None:
            for _ in range(calls):
                await pool.send(short_or_long(draw), Call())

        await asyncio.gather(*(work(100) for _ in range(30)))
        fast, slow = (one for one in pool.members)
        assert fast.tokens_per_s == pytest.approx(4 * slow.tokens_per_s, rel=0.5)
        assert servers[0].calls > 2.5 * servers[1].calls

    virtual_run(main())


class RoomServer(ModelServer):
    """Says that it could start a call after `room_s`."""

    room_s = 0.0

    def load(self, now_s: float, request: Request | None = None) -> Load:
        assert request is not None or not self.in_flight
        return Load(room_s=self.room_s)


def test_room_sends_each_call_where_it_can_start_first() -> None:
    async def main() -> None:
        servers = [RoomServer(f"s{n}", slots=64) for n in range(3)]
        pool = pool_of(servers, "room")
        for rooms, best in (((3.0, 1.0, 2.0), 1), ((0.5, 1.0, 2.0), 0), ((math.inf, 9.0, 1e9), 1)):
            for server, room_s in zip(servers, rooms, strict=True):
                server.room_s = room_s
            outcome = await pool.send(Request(body={"work": 0.1}), Call())
            assert outcome.endpoint == f"s{best}"

    virtual_run(main())


@cache
def text_of(group: int) -> str:
    """2,000 characters that a group has alone."""
    return "".join(random.Random(group).choices("abcdefgh ", k=2_000))


def asked(group: int, number: int = 0, work_s: float = 0.5) -> Request:
    """A call whose prompt begins as those of its group do."""
    said = [
        {"role": "system", "content": text_of(group)},
        {"role": "user", "content": f"no. {number}"},
    ]
    return Request(body={"model": "m", "messages": said, "work": work_s})


def run_groups(strategy: str, groups: int, *, at_once: int) -> tuple[float, float, float]:
    """Seconds for 1,200 calls of so many groups, the share of cached prefixes, the longest wait."""

    async def main() -> tuple[float, float, float]:
        servers = [
            CachingServer(f"s{n}", prefill_s=PREFILL_S, kept=100, slots=4, bound=4)
            for n in range(8)
        ]
        pool, draw, begun_s = pool_of(servers, strategy), random.Random(1), CLOCK.now_s()
        requests = iter([asked(draw.randrange(groups), number) for number in range(1_200)])
        waits_s = list[float]()

        async def work() -> None:
            for request in requests:
                since_s = CLOCK.now_s()
                outcome = await pool.send(request, Call())
                waits_s.append(CLOCK.now_s() - since_s - outcome.latency_s)

        await asyncio.gather(*(work() for _ in range(at_once)))
        hits, misses = (sum(getattr(one, name) for one in servers) for name in ("hits", "misses"))
        return CLOCK.now_s() - begun_s, hits / (hits + misses), max(waits_s)

    return virtual_run(main())


@pytest.mark.parametrize("at_once", [24, 128], ids=["room for all", "calls wait"])
def test_prompts_that_begin_alike_find_a_server_that_has_them_cached(at_once: int) -> None:
    took_s, share, _ = run_groups("p2c", 64, at_once=at_once)
    prefix_s, prefix_share, _ = run_groups("prefix", 64, at_once=at_once)
    assert share < 0.3
    assert prefix_share > 0.7
    # The calls take 0.5 s and, if nothing is cached, 0.7 s more.
    assert prefix_s < 0.7 * took_s


def test_one_prompt_that_all_calls_share_keeps_no_server_idle() -> None:
    took_s, _, _ = run_groups("p2c", 1, at_once=128)
    prefix_s, share, _ = run_groups("prefix", 1, at_once=128)
    assert share > 0.95
    assert prefix_s <= 1.02 * took_s


def test_a_call_that_waits_is_passed_by_a_bounded_number_of_others() -> None:
    async def main() -> None:
        servers = [CachingServer(f"s{n}", prefill_s=0.0, kept=9, slots=1, bound=1) for n in (1, 2)]
        pool, order = pool_of(servers, "prefix"), list[int]()

        async def send(group: int, number: int, work_s: float = 0.5) -> None:
            await pool.send(asked(group, number, work_s), Call())
            order.append(number)

        async with asyncio.TaskGroup() as group:
            # The server that has seen the prompt of the call that waits is busy all the time.
            group.create_task(send(2, -1, 1_000.0))
            group.create_task(send(1, -2))
            await asyncio.sleep(0.01)
            group.create_task(send(2, -3))
            await asyncio.sleep(0.01)
            for number in range(200):
                group.create_task(send(1, number))
        assert order.index(-3) - 1 == MOST_PASSED
        assert [number for number in order if number >= 0] == list(range(200))

    virtual_run(main())


def test_a_call_of_higher_priority_is_not_passed() -> None:
    async def main() -> None:
        server = CachingServer("s", prefill_s=0.0, kept=100, slots=1, bound=1)
        pool, order = pool_of([server], "prefix"), list[str]()

        async def send(group: int, name: str, priority: int) -> None:
            await pool.send(asked(group), Call(priority=priority))
            order.append(name)

        async with asyncio.TaskGroup() as group:
            for prompt, name, priority in ((1, "a", 1), (1, "b", 1), (2, "urgent", 0)):
                group.create_task(send(prompt, name, priority))
        assert order == ["a", "urgent", "b"]

    virtual_run(main())


def test_a_strategy_that_needs_nothing_reads_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> Callable[..., object]:
        raise AssertionError("the call was read")

    monkeypatch.setattr("redline.route.call_facts.prefixes_of", read)
    monkeypatch.setattr("redline.route.call_facts.TokenEstimator.estimate", read)

    async def main(strategy: str) -> None:
        pool = pool_of([ModelServer("a"), ModelServer("b")], strategy)
        assert (await pool.send(Request(body={"work": 0.1}), Call())).is_success

    for strategy in ("p2c", "cheapest", "round_robin", "weighted_score", "normalized_score"):
        virtual_run(main(strategy))
