"""The service model: what servers of known speed are fitted as."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable

import pytest

from redline.calls import Call, Request
from redline.route.replay import Served, Service, fitted
from redline.testing import virtual_run
from support.fleet import ModelServer

CALLS = 600


def served(
    serve: Callable[[float], Awaitable[None]],
    *,
    workers: int,
    work_s: Callable[[float, float, float], float],
    noise: float = 0.1,
    idle_s: float = 0.0,
) -> list[Served]:
    """What this many workers see of a server; work_s: by new, cached and output tokens."""

    async def main() -> list[Served]:
        loop, draw, found = asyncio.get_running_loop(), random.Random(1), list[Served]()
        left = iter(range(CALLS))

        async def work() -> None:
            for _ in left:
                await asyncio.sleep(draw.expovariate(1 / idle_s) if idle_s else 0.0)
                new, output = draw.randrange(10, 500), draw.randrange(1, 300)
                cached = draw.randrange(0, 2000) if draw.random() < 0.5 else 0
                sent_s = loop.time()
                await serve(work_s(new, cached, output) * draw.uniform(1 - noise, 1 + noise))
                found.append(Served(sent_s, loop.time(), new, cached, output))

        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(work())
        return found

    return virtual_run(main())


def by_output(new: float, cached: float, output: float) -> float:
    return 0.5 + 0.02 * output


def slots(count: int) -> Callable[[float], Awaitable[None]]:
    server = ModelServer("s", slots=count)

    async def serve(work_s: float) -> None:
        await server.send(Request(body={"work": work_s}), Call())

    return serve


class Shared:
    """Each call in flight slows all others down, by small steps of time."""

    def __init__(self, slowdown: float) -> None:
        self.slowdown, self.in_flight = slowdown, 0

    async def __call__(self, work_s: float) -> None:
        self.in_flight += 1
        while work_s > 0:
            step_s = min(work_s, 0.05)
            await asyncio.sleep(step_s * (1 + self.slowdown * (self.in_flight - 1)))
            work_s -= step_s
        self.in_flight -= 1


def fit(calls: list[Served]) -> Service:
    service = fitted(calls)
    assert service is not None
    return service


def test_a_server_without_bounds_takes_its_work() -> None:
    service = fit(served(asyncio.sleep, workers=8, work_s=by_output))
    assert service.form == "parallel"
    assert service.base_s == pytest.approx(0.5, rel=0.1)
    assert service.output_s == pytest.approx(0.02, rel=0.05)
    assert (service.input_s, service.cached_s) == (0.0, 0.0)
    assert service.off < 0.08


@pytest.mark.parametrize("count", [1, 4])
def test_slots_are_found(count: int) -> None:
    """While they are full, and while they are not."""
    for idle_s in (0.0, 5.0):
        calls = served(slots(count), workers=12, work_s=by_output, idle_s=idle_s)
        service = fit(calls)
        assert (service.form, service.at_once) == ("slots", count)
        assert service.output_s == pytest.approx(0.02, rel=0.1)
        assert service.base_s == pytest.approx(0.5, rel=0.3)


def test_calls_that_slow_each_other_down_are_found() -> None:
    calls = served(Shared(0.2), workers=10, work_s=by_output, idle_s=5.0)
    service = fit(calls)
    assert service.form == "shared"
    assert service.slowdown == pytest.approx(0.2, rel=0.5)
    assert service.output_s == pytest.approx(0.02, rel=0.2)


def test_cached_tokens_have_a_weight_of_their_own() -> None:
    def work_s(new: float, cached: float, output: float) -> float:
        return 0.2 + 0.002 * new + 0.0001 * cached + 0.01 * output

    service = fit(served(asyncio.sleep, workers=8, work_s=work_s))
    assert service.input_s == pytest.approx(0.002, rel=0.2)
    assert service.cached_s < 0.0003
    assert service.output_s == pytest.approx(0.01, rel=0.1)


def test_work_that_no_token_explains_is_drawn_as_it_was() -> None:
    draw = random.Random(1)
    calls = [Served(n * 99.0, n * 99.0 + draw.expovariate(0.5)) for n in range(5000)]
    service = fit(calls)
    again = [service.work_s(0, 0, 0, draw.random()) for _ in range(5000)]
    assert sum(again) / 5000 == pytest.approx(2.0, rel=0.07)
    assert sorted(again)[2500] == pytest.approx(1.386, rel=0.1)
    assert max(again) > 8


def test_failures_are_a_share_of_attempts() -> None:
    calls = [Served(n, n + 0.5, is_answer=n % 5 > 0) for n in range(1000)]
    service = fit(calls)
    assert service.failures == pytest.approx(0.2)
    assert statistics.median(service.failed_s) == pytest.approx(0.5)


def test_too_few_calls_say_nothing() -> None:
    assert fitted([Served(n, n + 1.0) for n in range(29)]) is None
    assert fitted([]) is None


@pytest.mark.parametrize(
    ("service", "text"),
    [
        (Service(base_s=1.5, seen=7), "1.5 s, up to 7 at once"),
        (
            Service(base_s=0.2, output_s=0.01, seen=1),
            "200 ms + 10 ms per output token, up to 1 at once",
        ),
        (Service(form="slots", at_once=4, output_s=5e-5), "50 us per output token, 4 at once"),
        (
            Service(form="shared", slowdown=0.05, base_s=1.0, input_s=0.001, cached_s=1e-4),
            "1 s + 1 ms per input token + 100 us per cached token, "
            "5% more for each other call in flight, up to 1 at once",
        ),
    ],
)
def test_a_model_is_stated_in_words(service: Service, text: str) -> None:
    assert str(service) == text
