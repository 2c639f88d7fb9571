"""One queue for all limits: order, cancellation, parking, and nothing lost."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.errors import OverLimit
from redline.limits import Cost, Grant, Limiter, Limits, Rate
from redline.limits.rule import window as window_module
from redline.limits.server import Stated
from redline.testing import ManualClock, VirtualClock, virtual_run
from support.catching import assert_caught
from support.virtual_time import in_virtual_time

Granted = list[tuple[str, float]]


def limiter_of(kind: Any = Limiter, **limits: Any) -> Any:
    limits.setdefault("guard_s", 0.0)
    return kind(Limits(**limits), VirtualClock(asyncio.get_running_loop()))


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def take(
    limiter: Any, name: str, granted: Granted, tokens: int = 0, priority: int = 0
) -> Any:
    """Waits for a grant, notes it, and writes at once."""
    grant = await limiter.acquire(tokens, priority)
    # The calls of a burst go a few milliseconds apart.
    granted.append((name, pytest.approx(now_s(), abs=0.02)))
    grant.sent(now_s())
    return grant


async def settled() -> None:
    """Lets every task run as far as it gets without time passing."""
    for _ in range(5):
        await asyncio.sleep(0)


@in_virtual_time
async def test_a_grant_that_is_about_to_be_written_keeps_no_call_out_for_good() -> None:
    limiter = limiter_of(requests="1/10ms")
    grant = await limiter.acquire()
    assert limiter.room_s(Cost(), now_s() + 0.01) == pytest.approx(0.01)
    grant.sent(now_s())
    assert limiter.room_s(Cost(), now_s() + 0.01) == 0


@in_virtual_time
async def test_grants_go_in_order_of_arrival_whatever_the_size() -> None:
    limiter = limiter_of(tokens="100/1s", profile="moving")
    granted: Granted = []
    async with asyncio.TaskGroup() as group:
        for name, tokens in [("a", 60), ("large", 100), ("b", 1), ("c", 60), ("d", 39), ("e", 1)]:
            group.create_task(take(limiter, name, granted, tokens))
    assert granted == [("a", 0), ("large", 1), ("b", 2), ("c", 2), ("d", 2), ("e", 3)]


@in_virtual_time
async def test_a_lower_priority_number_goes_first_and_arrival_decides_within() -> None:
    limiter = limiter_of(requests="1/1s")
    granted: Granted = []
    async with asyncio.TaskGroup() as group:
        for name, priority in [("first", 5), ("x", 1), ("y", 0), ("z", 1), ("w", 0)]:
            group.create_task(take(limiter, name, granted, priority=priority))
    assert [name for name, _ in granted] == ["first", "y", "w", "x", "z"]


@in_virtual_time
async def test_a_large_request_is_not_starved_by_a_stream_of_small_ones() -> None:
    limiter = limiter_of(tokens="100/1s", profile="moving")
    granted: Granted = []

    async def stream() -> None:
        for number in range(400):
            group.create_task(take(limiter, f"small {number}", granted, 1))
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        group.create_task(stream())
        await asyncio.sleep(0.5)
        large = group.create_task(take(limiter, "large", granted, 100))
        await large
        # It needs the whole window, which is free one window after the last call before it.
        assert now_s() < 0.5 + 1.0 + 0.1


@in_virtual_time
async def test_every_limit_holds_and_none_is_booked_alone() -> None:
    limiter = limiter_of(requests=("2/1s", "3/10s"), tokens="100/1s", profile="moving")
    granted: Granted = []
    async with asyncio.TaskGroup() as group:
        for name, tokens in [("a", 90), ("b", 20), ("c", 1), ("d", 1)]:
            group.create_task(take(limiter, name, granted, tokens))
        await settled()
        # `b` waits for tokens alone: the request windows have booked and counted `a` only.
        assert [line.window.used(now_s()) for line in limiter.rules.lines] == [1, 1, 90]
    assert granted == [("a", 0), ("b", 1), ("c", 1), ("d", 10)]


@in_virtual_time
async def test_a_limiter_is_freed_once_nothing_refers_to_it() -> None:
    cases: list[dict[str, Any]] = [{}, {"requests": "2/1s", "tokens": "100/60s"}]
    for limits in cases:
        limiter = limiter_of(**limits)
        async with limiter(tokens=5):
            pass
        freed = weakref.ref(limiter)
        del limiter
        gc.collect()
        assert freed() is None


@in_virtual_time
async def test_a_call_larger_than_the_budget_is_refused_at_once() -> None:
    limiter = limiter_of(tokens=("1000/1s", "200/1s"))
    first = await limiter.acquire(200)
    waiting = asyncio.create_task(limiter.acquire(200))
    await settled()
    with pytest.raises(OverLimit) as caught:
        await limiter.acquire(201)
    assert now_s() == 0
    assert caught.value.what == (
        "the call needs at least 201 tokens, more than the limit of 200/1s ever allows"
    )
    assert "shorten the prompt" in caught.value.hint
    first.sent(0.0)
    assert (await waiting).cost.tokens == 200


@in_virtual_time
async def test_parking_holds_everybody_until_the_latest_wish() -> None:
    limiter = limiter_of(requests="1000/1s", profile="moving")
    granted: Granted = []
    assert limiter.park(5.0)
    assert not limiter.park(4.0)
    async with asyncio.TaskGroup() as group:
        group.create_task(take(limiter, "a", granted))
        await asyncio.sleep(1)
        # The timer is set for 5; a later wish while it runs must hold too.
        assert limiter.park(9.0)
        # One caller is in the queue.
        assert limiter.room_s(Cost(), now_s()) == 8.001
    assert granted == [("a", 9)]


@in_virtual_time
async def test_without_limits_all_go_at_once_and_parking_still_holds_them_in_order() -> None:
    limiter = limiter_of()
    assert limiter.is_unlimited
    for _ in range(3):
        grant = limiter.acquire_now(Cost(900))
        grant.sent(now_s())
        grant.settle(20)
        grant.release()
    assert limiter.park(5.0)
    assert limiter.acquire_now(Cost()) is None
    granted: Granted = []
    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(take(limiter, name, granted))
    assert granted == [("a", 5), ("b", 5), ("c", 5)]
    assert limiter.acquire_now(Cost()) is not None


@in_virtual_time
async def test_a_limit_that_is_set_later_holds_from_then_on() -> None:
    limiter = limiter_of()
    assert limiter.acquire_now(Cost()) is not None
    limiter.set_rates("requests", [Rate(1, 60.0)])
    assert not limiter.is_unlimited
    limiter.acquire_now(Cost()).sent(now_s())
    assert limiter.acquire_now(Cost()) is None
    assert limiter.room_s(Cost(), now_s()) == pytest.approx(60.0)


@in_virtual_time
async def test_a_grant_tells_how_long_it_was_waited_for() -> None:
    limiter = limiter_of(requests="1/10s")
    first = await limiter.acquire()
    assert first.waited_s == 0
    first.sent(now_s())
    assert (await limiter.acquire()).waited_s == pytest.approx(10)


@in_virtual_time
async def test_an_unwritten_grant_is_given_back_at_once() -> None:
    limiter = limiter_of(requests="1/60s", profile="moving")
    first = await limiter.acquire()
    second = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(7)
    first.release()
    first.release()
    await second
    assert now_s() == 7


@in_virtual_time
async def test_a_sent_grant_cannot_be_given_back() -> None:
    limiter = limiter_of(requests="1/60s", profile="moving")
    first = await limiter.acquire()
    first.sent(now_s())
    first.release()
    await limiter.acquire()
    assert now_s() == pytest.approx(60)


@in_virtual_time
async def test_settling_lets_the_head_go_early() -> None:
    limiter = limiter_of(tokens="100/60s", profile="moving")
    first = await limiter.acquire(90)
    first.sent(now_s())
    second = asyncio.create_task(limiter.acquire(80))
    await asyncio.sleep(3)
    first.settle(20)
    await second
    assert now_s() == 3


@in_virtual_time
async def test_a_late_write_counts_from_its_own_time() -> None:
    limiter = limiter_of(requests="1/1s", profile="moving")
    first = await limiter.acquire()
    second = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(5)
    assert not second.done()
    first.sent(now_s())
    await second
    assert now_s() == pytest.approx(6)


@in_virtual_time
async def test_a_cancelled_caller_ends_in_its_queue_whoever_is_next() -> None:
    limiter = limiter_of(requests="1/1s")
    granted: Granted = []
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(take(limiter, name, granted)) for name in "abcd"]
        await asyncio.sleep(0.5)
        tasks[1].cancel()
        tasks[2].cancel()
        await settled()
        assert limiter.waiting == 1
    assert granted == [("a", 0), ("d", 1)]


@in_virtual_time
async def test_a_caller_cancelled_in_the_tick_of_its_grant_gives_it_back() -> None:
    limiter = limiter_of(requests="1/60s", profile="moving")
    first = await limiter.acquire()
    second = asyncio.create_task(limiter.acquire())
    await settled()
    first.release()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    third = await limiter.acquire()
    assert now_s() == 0
    third.release()


async def churn(limiter: Any, plan: list[tuple[float, int, int, float, bool]]) -> None:
    """Callers that come, wait, are cancelled anywhere, write late or never."""

    async def one(tokens: int, priority: int, write_s: float, is_written: bool) -> None:
        grant: Grant | None = None
        try:
            grant = await limiter.acquire(tokens, priority)
            await asyncio.sleep(write_s)
            if is_written:
                grant.sent(now_s())
                grant.settle(tokens // 2)
        finally:
            if grant is not None:
                grant.release()

    tasks = []
    for cancel_after_s, tokens, priority, write_s, is_written in plan:
        task = asyncio.create_task(one(tokens, priority, write_s, is_written))
        tasks.append(task)
        if cancel_after_s >= 0:
            asyncio.get_running_loop().call_later(cancel_after_s, task.cancel)
    await asyncio.gather(*tasks, return_exceptions=True)


PLANS = st.lists(
    st.tuples(
        st.sampled_from([-1.0, -1.0, 0.0, 0.3, 1.0, 1.2, 2.0]),
        st.integers(1, 100),
        st.integers(0, 2),
        st.sampled_from([0.0, 0.0, 0.2, 1.0]),
        st.booleans(),
    ),
    max_size=25,
)


@settings(max_examples=80, deadline=None)
@given(PLANS, st.sampled_from(["any", "fixed", "bucket"]))
def test_cancelling_anywhere_leaks_nothing(
    plan: list[tuple[float, int, int, float, bool]], profile: str
) -> None:
    async def main() -> None:
        limiter = limiter_of(requests="3/1s", tokens="100/1s", profile=profile)
        await churn(limiter, plan)
        assert limiter.waiting == 0
        await asyncio.sleep(500)
        # A booking that had leaked would never leave its window.
        async with asyncio.timeout(3):
            for _ in range(3):
                await limiter.acquire(33)

    virtual_run(main())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_many_waiters_cost_a_few_operations_each(
    monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """A constant number of window questions for each waiter, and no search in the queue."""
    waiters, questions = 20_000, 0
    ask = window_module.Window.wait_s

    def counted(self: window_module.Window, amount: int, at_s: float, *more: Any) -> float:
        nonlocal questions
        questions += 1
        return ask(self, amount, at_s, *more)

    monkeypatch.setattr(window_module.Window, "wait_s", counted)

    async def main() -> None:
        limiter = limiter_of(requests="1000/1s", profile="moving")
        for _ in range(1000):
            (await limiter.acquire()).sent(now_s())
        calls = [asyncio.create_task(limiter.acquire()) for _ in range(waiters)]
        await settled()
        if is_cancelled:
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            assert limiter.waiting == 0
            return
        for call in calls:
            (await call).sent(now_s())
        assert now_s() == pytest.approx(waiters / 1000, rel=0.03)

    virtual_run(main())
    assert questions <= 3 * waiters


@in_virtual_time
async def test_a_cancelled_head_lets_the_next_one_go_at_once() -> None:
    limiter = limiter_of(tokens="100/1s", profile="moving")
    (await limiter.acquire(60)).sent(now_s())
    large = asyncio.create_task(limiter.acquire(100))
    small = asyncio.create_task(limiter.acquire(40))
    await asyncio.sleep(0.5)
    assert not small.done()
    large.cancel()
    await small
    assert now_s() == 0.5


@in_virtual_time
async def test_lowered_limits_refuse_who_could_never_go_and_lose_nobody_else() -> None:
    limiter = limiter_of(tokens="100/1s", profile="moving")
    (await limiter.acquire(100)).sent(now_s())
    large = asyncio.create_task(limiter.acquire(80))
    small = asyncio.create_task(limiter.acquire(50))
    await asyncio.sleep(0.5)
    limiter.set_rates("tokens", [Rate(50, 1.0)])
    with pytest.raises(OverLimit):
        await large
    assert now_s() == 0.5
    await small
    assert now_s() == pytest.approx(1)
    assert limiter.waiting == 0


@in_virtual_time
async def test_a_caller_cancelled_in_the_tick_of_its_refusal_stays_cancelled() -> None:
    limiter = limiter_of(tokens="100/1s", profile="moving")
    (await limiter.acquire(100)).sent(now_s())
    large = asyncio.create_task(limiter.acquire(80))
    await asyncio.sleep(0.5)
    limiter.set_rates("tokens", [Rate(50, 1.0)])
    large.cancel()
    with pytest.raises(asyncio.CancelledError):
        await large
    assert limiter.waiting == 0


@in_virtual_time
async def test_raised_limits_let_the_head_go_at_once() -> None:
    limiter = limiter_of(requests="1/60s", profile="moving")
    (await limiter.acquire()).sent(now_s())
    waiting = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(3)
    limiter.set_rates("requests", [Rate(2, 60.0)])
    await waiting
    assert now_s() == 3


@in_virtual_time
async def test_a_context_sends_on_entry_and_proves_by_its_end() -> None:
    limiter = Limiter(
        Limits(requests="40/1s", profile="moving"), VirtualClock(asyncio.get_running_loop())
    )
    first_guard_s = limiter.guard_s

    async def one() -> None:
        async with limiter() as grant:
            assert grant.sent_s == now_s()
            await asyncio.sleep(0.02)

    for _ in range(100):
        await one()
    assert limiter.guard_s < first_guard_s


@pytest.mark.parametrize("rate", ["2/1s", Rate(2, 1.0)])
def test_a_request_limit_alone_is_enough(rate: Any) -> None:
    clock = ManualClock()
    limiter = Limiter(rate, clock)
    assert limiter.used(clock.now_s()) == [("requests", Rate(2, 1.0), 0)]


@pytest.mark.parametrize(
    ("limits", "is_unlimited"),
    [({}, True), ({"requests": "2/1s"}, False), ({"rate": "auto"}, False)],
)
def test_only_without_limits_and_without_a_search_is_it_unlimited(
    limits: Any, is_unlimited: bool
) -> None:
    assert Limiter(Limits(**limits), ManualClock()).is_unlimited is is_unlimited


@in_virtual_time
async def test_contexts_and_plain_grants_wait_in_one_order() -> None:
    limiter = limiter_of(requests="1/1s")
    order: list[str] = []

    async def enter(name: str, **how: int) -> None:
        async with limiter(**how):
            order.append(name)

    async def acquire(name: str) -> None:
        (await limiter.acquire()).sent(now_s())
        order.append(name)

    async with asyncio.TaskGroup() as group:
        await enter("first")
        group.create_task(enter("last", priority=2))
        group.create_task(enter("third"))
        group.create_task(acquire("fourth"))
        group.create_task(enter("second", priority=-1))
    assert order == ["first", "second", "third", "fourth", "last"]


@in_virtual_time
async def test_a_context_takes_the_tokens_that_it_names() -> None:
    limiter = limiter_of(input_tokens="100/60s", output_tokens="90/60s", profile="moving")
    for call, used in (
        ({}, [0, 0]),
        ({"tokens": 40}, [40, 0]),
        ({"tokens": 20, "output_tokens": 30}, [60, 30]),
    ):
        async with limiter(**call):
            pass
        assert [amount for _, _, amount in limiter.used(now_s())] == used


@in_virtual_time
async def test_a_call_that_was_estimated_at_no_tokens_is_settled_as_input() -> None:
    limiter = limiter_of(
        tokens="100/60s", input_tokens="90/60s", output_tokens="80/60s", profile="moving"
    )
    async with limiter() as grant:
        grant.settle(30)
    used = {kind: amount for kind, _, amount in limiter.used(now_s())}
    assert used == {"tokens": 30, "input_tokens": 30, "output_tokens": 0}


@in_virtual_time
async def test_a_call_is_sent_once_and_never_after_its_release() -> None:
    limiter = limiter_of(requests="3/60s", profile="moving")
    sent, released = await limiter.acquire(), await limiter.acquire()
    sent_s = now_s()
    sent.sent(sent_s)
    released.release()
    for _ in range(2):
        await asyncio.sleep(5)
        sent.sent(now_s())
        released.sent(now_s())
    assert sent.sent_s == sent_s
    assert released.sent_s is None
    # Only the call that was sent counts, from its first write.
    assert limiter.used(59.9) == [("requests", Rate(3, 60.0), 1)]
    assert limiter.used(60.1) == [("requests", Rate(3, 60.0), 0)]


@in_virtual_time
async def test_what_a_call_waited_counts_from_when_it_asked() -> None:
    limiter = limiter_of(requests="1/10s", profile="moving")
    (await limiter.acquire()).sent(now_s())
    await asyncio.sleep(7)
    assert (await limiter.acquire()).waited_s == pytest.approx(3)


@in_virtual_time
async def test_whoever_waits_out_a_park_goes_at_its_very_end() -> None:
    limiter = limiter_of(requests="1000/1s", profile="moving")
    limiter.park(5.0)
    await limiter.acquire()
    assert now_s() == 5.0
    assert limiter.park(6.0)
    await asyncio.sleep(1.0)
    assert limiter.acquire_now(Cost()) is not None


@in_virtual_time
async def test_a_waiter_goes_sooner_if_a_change_makes_its_turn_come_sooner() -> None:
    limiter = limiter_of(requests="2/60s", profile="moving")
    for _ in range(2):
        (await limiter.acquire()).sent(0.0)
    waiting = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(3)
    limiter.set_rates("requests", [Rate(2, 10.0)])
    await waiting
    assert now_s() == pytest.approx(10)


@in_virtual_time
async def test_usage_lets_the_head_go_early_under_a_token_limit_that_was_set_later() -> None:
    limiter = limiter_of(requests="10/1s", profile="moving")
    assert not limiter.counts_tokens
    limiter.set_rates("tokens", [Rate(100, 60.0)])
    assert limiter.counts_tokens
    first = await limiter.acquire(90)
    first.sent(now_s())
    second = asyncio.create_task(limiter.acquire(80))
    await asyncio.sleep(3)
    first.settle(20)
    await second
    assert now_s() == 3


def test_a_call_that_goes_on_time_lets_no_later_one_come_early() -> None:
    """Only lateness is made up for: the calls after one that waited for tokens keep their pace."""

    async def main() -> None:
        limiter = limiter_of(requests="8/1s", tokens="80/10s")
        begun_s, at_s = now_s(), []
        for tokens in (4, 0, 0, 0):
            (await limiter.acquire(tokens)).sent(now_s())
            at_s.append(now_s() - begun_s)
        # Four tokens take half a second, and each request an eighth.
        assert at_s == [0.0, 0.5, 0.625, 0.75]

    virtual_run(main(), start_s=1024.0)


def test_tokens_catch_up_what_another_limit_held_back_but_no_idle_time() -> None:
    async def main() -> None:
        limiter = limiter_of(requests="1/1s", tokens="160/20s")
        for idle_s, last_s in ((0.0, 2.5), (1.0, 3.0)):
            begun_s = now_s()
            (await limiter.acquire(4)).sent(now_s())
            # Its tokens were paid for after half a second, and the next call came after a second.
            await asyncio.sleep(idle_s)
            (await limiter.acquire(16)).sent(now_s())
            assert now_s() - begun_s == 1.0
            (await limiter.acquire(1)).sent(now_s())
            assert now_s() - begun_s == pytest.approx(last_s)
            await asyncio.sleep(100)

    virtual_run(main(), start_s=1024.0)


@pytest.mark.parametrize(("is_limited", "is_slower"), [(True, True), (False, False)])
def test_refused_calls_slow_the_later_ones_and_accepted_ones_do_not(
    is_limited: bool, is_slower: bool
) -> None:
    async def main() -> None:
        limiter = limiter_of(requests="20/1s", profile="moving")
        for _ in range(100):
            (await limiter.acquire()).sent(now_s())
            limiter.answered(now_s(), is_limited=is_limited)
        await asyncio.sleep(1)
        begun_s = now_s()
        for _ in range(41):
            (await limiter.acquire()).sent(now_s())
        assert (now_s() - begun_s > 4) == is_slower

    virtual_run(main())


@in_virtual_time
async def test_the_limit_that_holds_a_large_head_is_named_and_none_once_it_has_left() -> None:
    limiter = limiter_of(requests="10/1s", tokens="100/60s", profile="moving")
    (await limiter.acquire(60)).sent(now_s())
    await asyncio.sleep(1)
    assert limiter.holding(now_s()) == []
    large = asyncio.create_task(limiter.acquire(80))
    await settled()
    assert limiter.holding(now_s()) == [("tokens", Rate(100, 60.0))]
    large.cancel()
    await settled()
    assert limiter.holding(now_s()) == []


@in_virtual_time
async def test_the_last_of_several_calls_has_room_when_all_their_tokens_have() -> None:
    limiter = limiter_of(tokens="100/60s", profile="moving")
    (await limiter.acquire(60)).sent(now_s())
    assert limiter.room_for_s(1, {"tokens": 30}, 10.0) == 0
    assert limiter.room_for_s(2, {"tokens": 30}, 10.0) == pytest.approx(50)
    assert limiter.room_for_s(2, {"tokens": 20}, 10.0) == 0


@in_virtual_time
async def test_a_call_that_a_lowered_limit_has_no_room_for_does_not_fit_now() -> None:
    limiter = limiter_of(rate="auto", tokens="100/60s")
    assert limiter.fits(Cost(60))
    grant = await limiter.acquire(10)
    grant.sent(now_s())
    limiter.heard([Stated("tokens", 50, 40, None, 60.0)], grant)
    assert limiter.fits(Cost(50))
    assert not limiter.fits(Cost(60))


@in_virtual_time
async def test_a_new_search_replaces_the_last_one_and_leaves_what_the_user_set() -> None:
    limiter = limiter_of(rate="auto", requests="40/1s", tokens="1000/60s")
    for searched in (Rate(10, 2.0), Rate(20, 3.0)):
        limiter.search([searched])
        rates = {(kind, rate) for kind, rate, _ in limiter.used(now_s())}
        users = {("requests", Rate(40, 1.0)), ("tokens", Rate(1000, 60.0))}
        assert rates == {*users, ("requests", searched)}
        assert limiter.found_rates() == [("requests", searched)]


def test_sends_that_an_older_version_kept_under_another_name_count(tmp_path: Path) -> None:
    async def main() -> None:
        earlier, later = (limiter_of(requests="1/60s", profile="moving") for _ in range(2))
        earlier.keep_sends(tmp_path, "old")
        (await earlier.acquire()).sent(now_s())
        await earlier.aclose()
        later.keep_sends(tmp_path, "new", ["older", "old"])
        assert later.acquire_now(Cost()) is None
        await later.aclose()

    virtual_run(main())


@pytest.mark.parametrize("keeps", [True, False])
def test_a_limiter_may_be_closed_twice_whether_it_keeps_its_sends_or_not(
    tmp_path: Path, keeps: bool
) -> None:
    async def main() -> None:
        limiter = limiter_of(requests="10/1s")
        if keeps:
            limiter.keep_sends(tmp_path, "a")
        async with limiter():
            pass
        for _ in range(2):
            await limiter.aclose()

    virtual_run(main())


# Wrong limiters: a queue by amount, the last one first, a grant or a place that is lost.


def check_order(kind: Any) -> None:
    async def main() -> None:
        limiter = limiter_of(kind, tokens="100/1s", profile="moving")
        granted: Granted = []
        async with asyncio.TaskGroup() as group:
            for name, tokens in [("a", 50), ("large", 90), ("small", 5), ("tiny", 1)]:
                group.create_task(take(limiter, name, granted, tokens))
        assert [name for name, _ in granted] == ["a", "large", "small", "tiny"]

    virtual_run(main())


def check_no_leak(kind: Any) -> None:
    async def main() -> None:
        limiter = limiter_of(kind, requests="1/1s", profile="moving")
        first = await limiter.acquire()
        second = asyncio.create_task(limiter.acquire())
        third = asyncio.create_task(limiter.acquire())
        await settled()
        first.release()
        second.cancel()
        await third
        third.result().release()
        fourth = asyncio.create_task(limiter.acquire())
        fifth = asyncio.create_task(limiter.acquire())
        await settled()
        fifth.cancel()
        await settled()
        assert limiter.waiting == 0
        (await fourth).sent(now_s())
        sixth = asyncio.create_task(limiter.acquire())
        seventh = asyncio.create_task(limiter.acquire())
        await settled()
        sixth.cancel()
        await seventh

    virtual_run(main())


def check_next(kind: Any) -> None:
    """Who is next goes as soon as the head has been cancelled or refused."""

    async def main() -> None:
        limiter = limiter_of(kind, tokens="100/1s", profile="moving")
        (await limiter.acquire(60)).sent(now_s())
        large = asyncio.create_task(limiter.acquire(100))
        small = asyncio.create_task(limiter.acquire(40))
        await settled()
        large.cancel()
        await small
        assert now_s() == 0
        small.result().release()
        large = asyncio.create_task(limiter.acquire(90))
        small = asyncio.create_task(limiter.acquire(20))
        await settled()
        limiter.set_rates("tokens", [Rate(80, 1.0)])
        (refused,) = await asyncio.gather(large, return_exceptions=True)
        assert isinstance(refused, OverLimit)
        await small
        assert now_s() == 0

    virtual_run(main(), limit_s=60)


class ByAmount(Limiter):
    async def acquire(self, cost: Any = 0, priority: int = 0) -> Any:
        return await super().acquire(cost, cost)


class LastFirst(Limiter):
    asked = 0

    async def acquire(self, cost: Any = 0, priority: int = 0) -> Any:
        self.asked += 1
        return await super().acquire(cost, -self.asked)


class Keeping(Limiter):
    def give_back(self, taken: Any) -> None:
        pass


class Uncancelled(Limiter):
    async def acquire(self, cost: Any = 0, priority: int = 0) -> Any:
        return await asyncio.shield(super().acquire(cost, priority))


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (check_order, ByAmount),
        (check_order, LastFirst),
        (check_no_leak, Keeping),
        (check_no_leak, Uncancelled),
        (check_next, Uncancelled),
    ],
)
def test_a_wrong_limiter_is_noticed(check: Any, wrong: Any) -> None:
    assert_caught(check, Limiter, wrong)


def test_a_rate_of_one_per_month_is_still_granted() -> None:
    async def main() -> float:
        limiter = limiter_of(requests=Rate(1, 31 * 86400.0))
        (await limiter.acquire()).sent(now_s())
        await limiter.acquire()
        return now_s()

    assert virtual_run(main(), limit_s=32 * 86400.0) == pytest.approx(31 * 86400)


@in_virtual_time
async def test_a_stated_request_limit_ends_the_search_for_one() -> None:
    limiter = limiter_of(rate="auto", requests="40/1s")
    limiter.search([Rate(10, 1.0)])
    grant = await limiter.acquire()
    grant.sent(now_s())
    # Another kind of limit, or what is left of one that is not known, ends no search.
    limiter.heard([Stated("tokens", 1000, 900, 1.0, 1.0)], grant)
    limiter.heard([Stated("requests", None, 5, 1.0, 1.0)], grant)
    assert limiter.is_searched
    assert Rate(10, 1.0) in [rate for _, rate, _ in limiter.used(now_s())]
    limiter.heard([Stated("requests", 20, 19, 1.0, 1.0)], grant)
    assert not limiter.is_searched
    rates = [rate for kind, rate, _ in limiter.used(now_s()) if kind == "requests"]
    assert Rate(10, 1.0) not in rates
    assert Rate(20, 1.0) in rates


@in_virtual_time
async def test_what_was_sent_before_a_limit_was_stated_counts_in_it() -> None:
    limiter = limiter_of(rate="auto", profile="fixed")
    limiter.search([Rate(10, 1.0)])
    grants = []
    for _ in range(30):
        grant = await limiter.acquire()
        grant.sent(now_s())
        grants.append(grant)
    # The first was answered late. The server had counted 25 until then.
    limiter.heard([Stated("requests", 50, 25, None, 60.0)], grants[20])
    begun_s, sent = now_s(), 0
    while now_s() < begun_s + 50:
        (await limiter.acquire()).sent(now_s())
        sent += now_s() < begun_s + 50
    # Of the 25 left, those that were sent after the answered one have used some.
    assert 25 - 9 - 1 <= sent <= 25 - 9


def test_a_day_is_counted_on_whatever_limit_is_stated_first(tmp_path: Path) -> None:
    minute = Stated("requests", 20, None, None, 60.0)
    day = Stated("requests", 30, None, None, 86_400.0)
    clock = ManualClock()

    def sends(order: list[Stated]) -> int:
        limiter = Limiter(Limits(rate="auto", profile="fixed", guard_s=0.0), clock)
        limiter.keep_sends(tmp_path, "a")
        grant = limiter.acquire_now(Cost())
        assert grant is not None
        grant.sent(clock.now_s())
        limiter.heard(order, grant)
        sent = 1
        for _ in range(10_000):
            clock.advance(0.1)
            grant = limiter.acquire_now(Cost())
            if grant is not None:
                grant.sent(clock.now_s())
                sent += 1
        asyncio.run(limiter.aclose())
        return sent

    assert sends([minute, day]) in {30, 31}
    assert sends([minute, day]) == 1
    assert sends([day, minute]) == 1


@pytest.mark.parametrize(
    ("searched", "first"),
    [(Rate(1, 60.0), ("requests", None)), (Rate(100, 1.0), ("requests", Rate(3, 60.0)))],
)
def test_the_limit_that_holds_the_head_is_named_unless_it_is_searched_for(
    searched: Rate, first: object
) -> None:
    async def main() -> None:
        limiter = limiter_of(rate="auto", requests="3/60s")
        limiter.search([searched])
        assert limiter.holding(now_s()) == []
        (await limiter.acquire()).sent(now_s())
        waiting = asyncio.create_task(limiter.acquire())
        await settled()
        assert limiter.holding(now_s())[0] == first
        waiting.cancel()

    virtual_run(main())


@in_virtual_time
async def test_a_token_limit_from_headers_is_named_during_a_search_for_a_rate() -> None:
    limiter = limiter_of(rate="auto")
    limiter.search([Rate(100, 1.0)])
    grant = await limiter.acquire(60)
    grant.sent(now_s())
    limiter.heard([Stated("tokens", 100, 40, None, 60.0)], grant)
    waiting = asyncio.create_task(limiter.acquire(80))
    await settled()
    assert limiter.holding(now_s()) == [("tokens", Rate(100, 60.0))]
    waiting.cancel()


@in_virtual_time
async def test_a_limit_that_holds_a_call_is_said_in_words() -> None:
    limiter = limiter_of(requests="10/1s", tokens="100/60s", profile="moving")
    assert limiter.binds(Cost(100), now_s()) == ""
    (await limiter.acquire(60)).sent(now_s())
    assert limiter.binds(Cost(50), now_s()) == "100/60s tokens"
    assert limiter.binds(Cost(10), now_s()) != "100/60s tokens"


def test_another_process_counts_the_sends_that_were_kept(tmp_path: Path) -> None:
    async def main() -> None:
        for name, goes_at_once in (("a", True), ("a", False), ("b", True)):
            limiter = limiter_of(requests="1/60s", profile="moving")
            limiter.keep_sends(tmp_path, name)
            grant = limiter.acquire_now(Cost())
            assert (grant is not None) == goes_at_once
            if grant is not None:
                grant.sent(now_s())
            await limiter.aclose()

    virtual_run(main())
