"""A backend within a budget, in virtual time: what is reserved, what is spent, who waits."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any

import pytest

from redline.calls import Call, Outcome, Reply, Request
from redline.calls.cost import NOTHING, Allowance, Amount, Metered, Prices, Spending, parse_price
from redline.calls.tokens import worst_of
from redline.errors import (
    BadReply,
    BudgetSpent,
    CallError,
    Disconnected,
    RateLimited,
    Rejected,
    ServerFailed,
    TimedOut,
    Unpriced,
)
from redline.testing import ScriptedBackend, VirtualClock, virtual_run
from support.catching import assert_caught

PRICES = Prices({"m": parse_price("m", {"input": 1, "cached_input": 0.5, "output": 2})})
REQUEST = Request(
    body={"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "x" * 100}]}
)
BOUND = worst_of(REQUEST)
# A dollar for a million tokens is 1,000,000 picodollars for one.
WORST = Amount((BOUND.input_tokens + 2 * 100) * 1_000_000, BOUND.input_tokens + 100)
USED = Amount((10 + 2 * 5) * 1_000_000, 15)


def ok(prompt_tokens: int = 10, completion_tokens: int = 5) -> Reply:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return Reply(
        output="ok", usage=usage, input_tokens=prompt_tokens, output_tokens=completion_tokens
    )


def worth(calls: float) -> Allowance:
    """What so many calls may cost at most."""
    return Allowance(picodollars=round(WORST.picodollars * calls))


def metered(backend: Any, allowance: Allowance, **more: Any) -> Any:
    clock = VirtualClock(asyncio.get_running_loop())
    spending, prices = more.pop("spending", Spending)(allowance), more.pop("prices", PRICES)
    return Metered(backend, spending, prices, clock=clock, **more)


def one(step: Any, *, allowance: Allowance | None = None, request: Request = REQUEST) -> Any:
    """(outcome, what is spent) of one call that ends so."""

    async def main() -> tuple[Outcome, Amount]:
        backend = metered(ScriptedBackend([step]), allowance or worth(1))
        outcome = await backend.send(request, Call())
        assert backend.spending.reserved == NOTHING
        return outcome, backend.spending.spent

    return virtual_run(main())


def unsent() -> Disconnected:
    error = Disconnected("no connection")
    error.was_sent = False
    return error


class Unwritten:
    """A backend that fails before anything is written."""

    def __init__(self, error: CallError) -> None:
        self._error = error

    async def send(self, request: Request, call: Call, sink: Any = None) -> Outcome:
        return Outcome(status="exhausted", error=self._error)


def test_a_reply_costs_what_its_usage_says() -> None:
    outcome, spent = one(ok())
    assert (outcome.output, spent) == ("ok", USED)


@pytest.mark.parametrize("step", [Reply(output="ok"), TimedOut("attempt", 1.0)], ids=type)
def test_what_may_have_been_billed_has_the_price_of_its_endpoint(step: Any) -> None:
    tariffs = {
        name: {"m": parse_price("m", {"input": price, "output": 2 * price})}
        for name, price in (("cheap", 1), ("dear", 100))
    }
    prices = Prices({}, {"cheap": {}, "dear": {}}, tariffs)

    async def main() -> None:
        inner = ScriptedBackend([step], label="cheap")
        backend = metered(inner, worth(100), prices=prices)
        await backend.send(REQUEST, Call())
        assert backend.spending.spent == WORST

    virtual_run(main())


def test_cached_input_costs_its_own_price() -> None:
    usage = {
        "prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}
    }  # fmt: skip
    assert one(Reply(output="ok", usage=usage))[1] == Amount(18_000_000, 15)


@pytest.mark.parametrize(
    "step",
    [
        Reply(output="ok"),
        Reply(output="ok", usage={"prompt_tokens": 3}),
        Reply(output="ok", usage={"prompt_tokens": 0, "completion_tokens": 0}),
        TimedOut("attempt", 1.0),
        TimedOut("first_byte", 1.0),
        Disconnected("reset"),
        BadReply("half"),
        Rejected("the answer is too long"),
        ServerFailed("HTTP 504", status=504),
    ],
)
def test_what_may_have_been_billed_stays_spent(step: Any) -> None:
    assert one(step)[1] == WORST


@pytest.mark.parametrize(
    "step",
    [
        RateLimited("HTTP 429", status=429),
        ServerFailed("HTTP 500", status=500),
        ServerFailed("HTTP 503", status=503),
        Rejected("HTTP 400", status=400),
        Rejected("HTTP 302", status=302),
    ],
)
def test_an_error_in_place_of_an_answer_costs_nothing(step: CallError) -> None:
    assert one(step)[1] == NOTHING


@pytest.mark.parametrize("error", [unsent(), TimedOut("connect", 1.0), TimedOut("row")])
def test_what_was_not_written_costs_nothing(error: CallError) -> None:
    async def main() -> None:
        backend = metered(Unwritten(error), worth(1))
        assert (await backend.send(REQUEST, Call())).error is error
        assert backend.spending.committed == NOTHING

    virtual_run(main())


def test_a_cancelled_call_that_was_written_stays_spent() -> None:
    async def main() -> None:
        backend = metered(ScriptedBackend([ok()], latency_s=5.0), worth(1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(backend.send(REQUEST, Call()), 1.0)
        assert (backend.spending.spent, backend.spending.reserved) == (WORST, NOTHING)

    virtual_run(main())


def test_what_cannot_fit_is_never_sent() -> None:
    async def main() -> None:
        inner = ScriptedBackend([ok()])
        backend = metered(inner, worth(0.999))
        outcome = await backend.send(REQUEST, Call())
        assert isinstance(outcome.error, BudgetSpent)
        assert outcome.error.stops_run
        assert not inner.sends
        assert "raise --budget, then" in outcome.error.hint

    virtual_run(main())


def test_a_model_without_a_price_stops_the_run_before_it_is_sent() -> None:
    other = Request(body={"model": "foo", "max_tokens": 1})
    outcome, _ = one(ok(), request=other)
    assert isinstance(outcome.error, Unpriced)
    assert outcome.error.stops_run
    outcome, _ = one(ok(), request=Request(body={}))
    assert "needs a model for every row" in outcome.error.what


def test_tokens_need_no_price() -> None:
    other = Request(body={"model": "foo", "max_tokens": 1})
    _, spent = one(ok(), request=other, allowance=Allowance(tokens=10_000))
    assert spent == Amount(0, 15)


def test_a_body_that_is_no_json_is_the_rows_own_fault() -> None:
    bad = Request(body={"model": "m", "max_tokens": 1, "x": object()})
    assert one(ok(), request=bad)[0].error.kind == "bad_row"


def test_a_server_that_adds_a_prompt_is_known_after_its_first_reply() -> None:
    async def main() -> None:
        backend = metered(ScriptedBackend([ok(5000)]), worth(100))
        await backend.send(REQUEST, Call())
        task = asyncio.ensure_future(backend.send(REQUEST, Call()))
        await asyncio.sleep(0)
        assert backend.spending.reserved.tokens == 5100
        await task

    virtual_run(main())


def test_without_a_stated_maximum_the_output_is_estimated() -> None:
    body = {name: value for name, value in REQUEST.body.items() if name != "max_tokens"}
    wide = Allowance(picodollars=10**12)

    async def main() -> None:
        backend = metered(ScriptedBackend([ok(10, 40)], latency_s=1.0), wide)
        reserved = []
        for _ in range(30):
            task = asyncio.ensure_future(backend.send(Request(body=body), Call()))
            await asyncio.sleep(0.5)
            reserved.append(backend.spending.reserved.tokens - worst_of(REQUEST).input_tokens)
            await task
        assert (reserved[0], reserved[-1]) == (239, 23)

    virtual_run(main())


def test_calls_wait_in_order_of_arrival() -> None:
    """None overtakes those before it, however small it is."""

    async def main() -> None:
        inner = ScriptedBackend([ok()], latency_s=lambda send: 1.0 + send.number / 100)
        backend = metered(inner, worth(1.6))
        small = Request(body={**REQUEST.body, "max_tokens": 1})
        requests = [REQUEST, REQUEST, small, REQUEST]
        outcomes = await asyncio.gather(*(backend.send(one, Call()) for one in requests))
        assert all(outcome.is_success for outcome in outcomes)
        assert [send.request for send in inner.sends] == requests
        assert inner.sends[1].at_s >= 1.0
        assert inner.sends[2].at_s >= inner.sends[1].at_s

    virtual_run(main(), limit_s=100.0)


def test_a_cancelled_waiter_gives_its_place_up() -> None:
    """Also if it has just been let in."""

    class Letting(Spending):
        """Cancels the second call in the turn of the loop in which it is let in."""

        def settle(self, reserved: Amount, actual: Amount) -> None:
            super().settle(reserved, actual)
            asyncio.get_running_loop().call_soon(second.cancel)

    async def main() -> None:
        nonlocal second
        inner = ScriptedBackend([ok()], latency_s=1.0)
        backend = metered(inner, worth(1.6), spending=Letting)
        first, second, third = (
            asyncio.ensure_future(backend.send(REQUEST, Call())) for _ in range(3)
        )
        outcomes = await asyncio.gather(first, third)
        assert all(outcome.is_success for outcome in outcomes)
        # The third has the place that the second gave up.
        assert [send.at_s for send in inner.sends] == [0.0, 1.0]
        assert second.cancelled()
        assert backend.spending.reserved == NOTHING

    second: Any = None
    virtual_run(main(), limit_s=100.0)


def test_a_row_waits_no_longer_than_its_deadline() -> None:
    async def main() -> None:
        backend = metered(ScriptedBackend([ok()], latency_s=10.0), worth(1))
        first = asyncio.ensure_future(backend.send(REQUEST, Call()))
        await asyncio.sleep(0)
        late = await backend.send(REQUEST, Call(deadline_s=2.0))
        assert isinstance(late.error, TimedOut)
        assert asyncio.get_running_loop().time() == 2.0
        assert (await first).is_success

    virtual_run(main())


def test_once_it_is_spent_all_that_wait_are_told_and_none_is_sent() -> None:
    async def main() -> None:
        inner = ScriptedBackend([ok(), Reply(output="no usage")], latency_s=1.0)
        backend = metered(inner, worth(1.5))
        small = Request(body={**REQUEST.body, "max_tokens": 1})
        requests = [REQUEST, REQUEST, REQUEST, small]
        outcomes = await asyncio.gather(*(backend.send(one, Call()) for one in requests))
        assert [outcome.is_success for outcome in outcomes] == [True, True, False, False]
        late = await backend.send(small, Call())
        assert all(isinstance(o.error, BudgetSpent) for o in (*outcomes[2:], late))
        assert len(inner.sends) == 2

    virtual_run(main())


class Book:
    """An account that is kept in memory, and a disk that may be full."""

    def __init__(self) -> None:
        self.kept = [NOTHING]
        self.is_full = False

    def keep(self, committed: Amount) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.kept.append(committed)


def test_the_account_is_told_before_each_write_and_after_each_settlement() -> None:
    """The account knows of a call before it is written, and of no call that is not."""

    async def main() -> None:
        book = Book()

        class Watched(ScriptedBackend):
            async def send(self, request: Request, call: Call, sink: Any = None) -> Outcome:
                await asyncio.sleep(3.0)
                return await super().send(request, call, sink)

        inner = Watched([ok()], latency_s=1.0)
        backend = metered(inner, worth(10), account=book)
        calls = [asyncio.ensure_future(backend.send(REQUEST, Call())) for _ in range(2)]
        await asyncio.sleep(1.0)
        assert book.kept == [NOTHING]
        await asyncio.sleep(2.5)
        assert book.kept[-1] == WORST.plus(WORST)
        await asyncio.gather(*calls)
        assert book.kept[-1] == USED.plus(USED)

    virtual_run(main())


def test_a_disk_that_is_full_ends_the_run_before_the_write() -> None:
    async def main() -> None:
        book = Book()
        book.is_full = True
        inner = ScriptedBackend([ok()])
        backend = metered(inner, worth(10), account=book)
        with pytest.raises(BudgetSpent) as caught:
            await backend.send(REQUEST, Call())
        assert "cannot be recorded: No space left" in caught.value.what
        assert caught.value.hint.startswith("check the disk of the output")
        assert backend.spending.committed == NOTHING

    virtual_run(main())


def test_a_request_that_is_written_twice_is_paid_for_twice() -> None:
    class Twice(ScriptedBackend):
        async def send(self, request: Request, call: Call, sink: Any = None) -> Outcome:
            assert call.on_write is not None
            call.on_write()
            return await super().send(request, call, sink)

    async def main() -> None:
        backend = metered(Twice([ok()]), worth(2))
        assert (await backend.send(REQUEST, Call())).is_success
        assert backend.spending.spent == WORST.plus(USED)
        tight = metered(Twice([ok()]), worth(1))
        with pytest.raises(BudgetSpent):
            await tight.send(REQUEST, Call())
        assert tight.spending.committed == WORST

    virtual_run(main())


def never_above(spending: Any) -> None:
    """Ten calls at once, each of which costs its worst case: as many as the budget pays for."""

    async def main() -> None:
        dear = ok(BOUND.input_tokens, 100)
        inner = ScriptedBackend([dear], latency_s=1.0)
        backend = metered(inner, worth(4.5), spending=spending)
        await asyncio.gather(*(backend.send(REQUEST, Call()) for _ in range(10)))
        assert len(inner.sends) == 4
        assert backend.spending.spent.picodollars == 4 * WORST.picodollars

    virtual_run(main())


class Unreserved(Spending):
    """Counts what is spent, and not what the calls on their way may cost."""

    def reserve(self, worst: Amount) -> bool:
        self.reserved = NOTHING
        return super().reserve(worst)

    def settle(self, reserved: Amount, actual: Amount) -> None:
        super().settle(NOTHING, actual)


class Free(Spending):
    """Spends nothing."""

    def settle(self, reserved: Amount, actual: Amount) -> None:
        super().settle(reserved, NOTHING)


@pytest.mark.parametrize("wrong", [Unreserved, Free])
def test_a_budget_that_is_passed_is_noticed(wrong: Any) -> None:
    assert_caught(never_above, Spending, wrong)
