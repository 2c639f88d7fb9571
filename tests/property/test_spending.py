"""A budget against a server that bills as it likes: never passed, and used up where there is work.

Each case draws rows, prices, latencies, faults and cancellations from its seed, and runs them
through retries in virtual time. What the server has billed is the server's own count.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.calls import Call, Load, Outcome, Reply, Request, Retry, RetryPolicy, failed
from redline.calls.cost import NOTHING, Allowance, Amount, Metered, Price, Prices, Spending
from redline.calls.tokens import worst_of
from redline.errors import BadReply, BudgetSpent, Disconnected, RateLimited, ServerFailed, TimedOut
from redline.testing import VirtualClock, virtual_run
from support.catching import assert_caught

PRICE = Price(input=150_000, cached_input=75_000, output=600_000)
FAULTS = ("answer", "answer", "answer", "silent", "429", "500", "cut", "late", "half", "unsent")


class Biller:
    """A server of any temper. billed: what it charges for, as soon as it does."""

    def __init__(self, chance: random.Random, limit: Allowance) -> None:
        self.chance = chance
        self.limit = limit
        self.billed = NOTHING
        self.most_billed = NOTHING
        self._fault_share = chance.choice((0.0, 0.05, 0.3))

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load()

    async def aclose(self) -> None:
        pass

    async def send(self, request: Request, call: Call, sink: Any = None) -> Outcome:
        chance = self.chance
        kind = chance.choice(FAULTS) if chance.random() < self._fault_share else "answer"
        await asyncio.sleep(chance.uniform(0, 0.5))
        if kind == "unsent":
            error = Disconnected("no connection")
            error.was_sent = False
            return failed(error)
        assert call.on_write is not None
        call.on_write()
        call.sent_s = 0.0
        usage = self._usage(request)
        is_billed_early = chance.random() < 0.5
        if is_billed_early and kind not in ("429", "500"):
            self._bill(usage)
        try:
            await asyncio.sleep(chance.lognormvariate(0.0, 1.0))
        finally:
            call.sent_s = None
        if kind == "429":
            return failed(RateLimited("HTTP 429", status=429))
        if kind == "500":
            return failed(ServerFailed("HTTP 500", status=500))
        if not is_billed_early:
            self._bill(usage)
        return self._ended(kind, usage)

    def _ended(self, kind: str, usage: dict[str, Any]) -> Outcome:
        match kind:
            case "cut":
                return failed(Disconnected("reset"))
            case "late":
                return failed(TimedOut("attempt", 1.0))
            case "half":
                return failed(BadReply("half"))
            case "silent":
                return Outcome(status="succeeded", reply=Reply(output="x"))
            case _:
                return Outcome(status="succeeded", reply=Reply(output="x", usage=usage))

    def _usage(self, request: Request) -> dict[str, Any]:
        worst = worst_of(request)
        assert worst.output_tokens is not None
        prompt = self.chance.randint(1, worst.input_tokens)
        output = self.chance.randint(0, worst.output_tokens)
        cached = {"cached_tokens": self.chance.randint(0, prompt)}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "prompt_tokens_details": cached,
        }

    def _bill(self, usage: dict[str, Any]) -> None:
        prompt, output = usage["prompt_tokens"], usage["completion_tokens"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        money = (prompt - cached) * PRICE.input + cached * PRICE.cached_input
        self.billed = self.billed.plus(Amount(money + output * PRICE.output, prompt + output))
        if self.limit.picodollars is not None:
            assert self.billed.picodollars <= self.limit.picodollars, "the budget is passed"
        if self.limit.tokens is not None:
            assert self.billed.tokens <= self.limit.tokens, "the budget in tokens is passed"


def draw_request(chance: random.Random) -> Request:
    text = chance.choice("aé🚗") * chance.randint(0, 200)
    most = chance.randint(1, 150)
    message = {"role": "user", "content": text}
    return Request(body={"model": "m", "max_tokens": most, "messages": [message]})


def draw_allowance(chance: random.Random, requests: list[Request]) -> tuple[Allowance, float]:
    """A budget, and the share of it that the dearest call may cost."""
    bounds = [worst_of(request) for request in requests]
    money = max(PRICE.most(b.input_tokens, b.output_tokens or 0, may_write=False) for b in bounds)
    tokens = max(b.input_tokens + (b.output_tokens or 0) for b in bounds)
    times = chance.choice((0.5, 1, 3, 25, 60))
    if chance.random() < 0.5:
        return Allowance(picodollars=round(money * times)), 1 / times
    return Allowance(tokens=round(tokens * times)), 1 / times


def share_used(spending: Spending) -> float:
    allowance, spent = spending.allowance, spending.spent
    if allowance.picodollars is not None:
        return spent.picodollars / allowance.picodollars
    assert allowance.tokens is not None
    return spent.tokens / allowance.tokens


async def play(seed: int, kind: type[Spending] = Spending, price: Price = PRICE) -> None:
    """price: what the meter takes for the server's."""
    chance = random.Random(seed)
    requests = [draw_request(chance) for _ in range(chance.randint(1, 400))]
    allowance, dearest = draw_allowance(chance, requests)
    server = Biller(chance, allowance)
    clock = VirtualClock(asyncio.get_running_loop())
    spending = kind(allowance)
    metered = Metered(server, spending, Prices({"m": price}), clock=clock)
    retry = Retry(metered, RetryPolicy(max_retries=3), clock=clock, seed=seed)
    queue = iter(requests)
    outcomes: list[Outcome] = []

    async def work() -> None:
        while (request := next(queue, None)) is not None:
            outcomes.append(await retry.send(request, Call()))

    workers = [asyncio.ensure_future(work()) for _ in range(chance.choice((1, 5, 40)))]
    if chance.random() < 0.5:
        # Some rows are given up at any moment, as a run's abort does.
        await asyncio.sleep(chance.uniform(0, 5))
        for worker in chance.sample(workers, len(workers) // 2):
            worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    failures = [w.exception() for w in workers if not w.cancelled() and w.exception()]
    assert not failures, failures
    assert spending.reserved == NOTHING
    assert server.billed.picodollars <= spending.spent.picodollars
    assert server.billed.tokens <= spending.spent.tokens
    was_spent = any(isinstance(outcome.error, BudgetSpent) for outcome in outcomes)
    if was_spent and dearest < 0.05:
        assert share_used(spending) >= 0.95, "the budget is not used"


@settings(max_examples=50, deadline=None)
@given(st.integers(1000, 10**9))
def test_a_budget_is_never_passed_and_used_where_there_is_work(seed: int) -> None:
    virtual_run(play(seed))


class Forgetful(Spending):
    """Does not see what is reserved for calls on their way."""

    def reserve(self, worst: Amount) -> bool:
        reserved, self.reserved = self.reserved, NOTHING
        is_free = super().reserve(worst)
        self.reserved = self.reserved.plus(reserved)
        return is_free


class Late(Spending):
    """Sees a call only once it is reserved."""

    def reserve(self, worst: Amount) -> bool:
        if not super().reserve(NOTHING):
            return False
        self.reserved = self.reserved.plus(worst)
        return True


class Hopeful(Spending):
    """Takes a call of which nothing is known for one that was not billed."""

    def settle(self, reserved: Amount, actual: Amount) -> None:
        super().settle(reserved, NOTHING if actual == reserved else actual)


class Timid(Spending):
    """Wants room for two calls before it lets one go."""

    def reserve(self, worst: Amount) -> bool:
        if not super().reserve(worst.plus(worst)):
            return False
        self.reserved = self.reserved.minus(worst)
        return True


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [Forgetful, Late, Hopeful, Timid])
def test_a_wrong_sum_is_noticed(wrong: type[Spending]) -> None:
    def keeps_the_budget(kind: type[Spending]) -> None:
        for seed in range(30):
            virtual_run(play(seed, kind))

    assert_caught(keeps_the_budget, Spending, wrong)


def test_a_price_that_is_too_low_is_noticed() -> None:
    def keeps_the_budget(price: Price) -> None:
        for seed in range(30):
            virtual_run(play(seed, price=price))

    assert_caught(keeps_the_budget, PRICE, Price(input=150_000, cached_input=75_000, output=1))
