"""The only retry, in virtual time: what is tried again, when, how often, and at whose cost."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from redline.calls import Call, Chunk, Outcome, Reply, Request, Retry, RetryPolicy, Sink
from redline.calls.client import RetryBudget
from redline.errors import (
    BadReply,
    CallError,
    ConfigError,
    Disconnected,
    NoEndpoint,
    RateLimited,
    Refused,
    Rejected,
    ServerFailed,
    TimedOut,
    Withdrawn,
)
from redline.events import Event, RetryScheduled, RetryStarted
from redline.testing import ScriptedBackend, Send, Step, VirtualClock, virtual_run

OK = Reply(output="ok")


def broken(status: int = 500) -> ServerFailed:
    return ServerFailed(f"the server failed: HTTP {status}", status=status)


def unreachable() -> Disconnected:
    error = Disconnected("no connection: refused")
    error.was_sent = False
    return error


class Heard:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def retry_of(backend: ScriptedBackend, *, kind: Any = Retry, seed: int = 1, **settings: Any) -> Any:
    clock = VirtualClock(asyncio.get_running_loop())
    listener = settings.pop("listener", Heard())
    policy = RetryPolicy(**settings)
    return kind(backend, policy, clock=clock, listener=listener, seed=seed)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def call_once(
    script: Any,
    *,
    kind: Any = Retry,
    call: Call | None = None,
    latency_s: float = 0.0,
    **settings: Any,
) -> tuple[Outcome, ScriptedBackend]:
    async def main() -> tuple[Outcome, ScriptedBackend]:
        backend = ScriptedBackend(script, latency_s=latency_s)
        retry = retry_of(backend, kind=kind, **settings)
        outcome = await retry.send(Request(), call if call is not None else Call())
        return outcome, backend

    return virtual_run(main())


def gaps(backend: ScriptedBackend) -> list[float]:
    stamps = [send.at_s for send in backend.sends]
    return [after - before for before, after in itertools.pairwise(stamps)]


def test_a_success_is_returned_as_it_is() -> None:
    outcome, backend = call_once([OK])
    assert (outcome.output, outcome.attempts, len(backend.sends)) == ("ok", 1, 1)


@pytest.mark.parametrize("max_retries", [0, 1, 8])
@pytest.mark.parametrize(
    "error", [broken(), TimedOut("attempt", 1.0), Disconnected("reset"), broken(408)]
)
def test_attempts_are_counted(error: CallError, max_retries: int) -> None:
    outcome, backend = call_once([error], max_retries=max_retries)
    assert len(backend.sends) == max_retries + 1
    assert (outcome.status, outcome.attempts) == ("exhausted", max_retries + 1)
    assert type(outcome.error) is type(error)


@pytest.mark.parametrize("failures", [1, 3])
def test_it_stops_at_the_first_success(failures: int) -> None:
    outcome, _ = call_once([broken()] * failures + [OK])
    assert (outcome.status, outcome.attempts) == ("succeeded", failures + 1)


def test_the_outcome_says_what_was_tried() -> None:
    errors = [broken(), RateLimited("full", status=429, retry_after_s=7.0), unreachable()]
    for error in errors:
        error.keep_body(b"long")
    outcome, backend = call_once([*errors, OK], latency_s=0.5)
    assert [type(one.error) for one in outcome.tried] == [*map(type, errors), type(None)]
    assert [one.sent_s for one in outcome.tried] == [send.at_s for send in backend.sends]
    assert [one.complete_s for one in outcome.tried] == [send.at_s + 0.5 for send in backend.sends]
    assert {one.endpoint for one in outcome.tried} == {"scripted"}
    # What waits for its retry keeps no bodies.
    assert all(one.error.body == b"" for one in outcome.tried if isinstance(one.error, CallError))


@pytest.mark.parametrize("most", [3, 60])
def test_the_last_attempts_are_kept_and_the_last_body(most: int) -> None:
    error = broken()
    error.keep_body(b"why")
    outcome, _ = call_once([error], max_retries=most)
    assert (outcome.attempts, len(outcome.tried)) == (most + 1, min(32, most + 1))
    assert outcome.tried[-1].error is outcome.error
    assert isinstance(outcome.error, CallError)
    assert outcome.error.body == b"why"


def test_a_row_that_is_late_says_what_was_tried_and_how_long_the_last_attempt_took() -> None:
    outcome, _ = call_once([broken()], call=Call(deadline_s=2.0), latency_s=1.0)
    assert isinstance(outcome.error, TimedOut)
    assert (outcome.latency_s, outcome.endpoint) == (1.0, "scripted")
    assert len(outcome.tried) == outcome.attempts
    assert isinstance(outcome.tried[-1].error, ServerFailed)


@pytest.mark.parametrize("error", [Rejected("bad"), Refused("key"), NoEndpoint("down")])
def test_what_is_final_is_not_tried_again(error: CallError) -> None:
    outcome, backend = call_once([error])
    assert (outcome.status, len(backend.sends)) == ("rejected", 1)


@pytest.mark.parametrize("seed", range(5))
def test_back_off_doubles_within_its_bounds(seed: int) -> None:
    _, backend = call_once([broken()], max_retries=12, base_s=0.1, cap_s=2.0, seed=seed)
    ceilings = [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2, 2, 2, 2, 2]
    assert all(0 <= gap <= ceiling for gap, ceiling in zip(gaps(backend), ceilings, strict=True))
    # Full jitter: uniform from 0, so some waits lie in the lower half and some in the upper one.
    shares = [gap / ceiling for gap, ceiling in zip(gaps(backend), ceilings, strict=True)]
    assert min(shares) < 0.5 < max(shares)


def test_retry_after_of_a_429_is_the_wait() -> None:
    error = RateLimited("full", status=429, retry_after_s=7.0)
    outcome, backend = call_once([error, error, OK])
    assert gaps(backend) == pytest.approx([7.0, 7.0])
    assert outcome.is_success


def test_retry_after_of_another_error_is_the_least_wait() -> None:
    error = ServerFailed("busy", status=503, retry_after_s=40.0)
    _, backend = call_once([error, OK])
    assert gaps(backend) == pytest.approx([40.0])
    late = ServerFailed("busy", status=503, retry_after_s=0.001)
    _, backend = call_once([late] * 8 + [OK])
    assert max(gaps(backend)) > 1


@pytest.mark.parametrize("wish_s", [None, 0.0])
def test_a_429_without_a_wish_backs_off(wish_s: float | None) -> None:
    _, backend = call_once([RateLimited("full", status=429, retry_after_s=wish_s)] * 6 + [OK])
    assert sum(gaps(backend)) > 1


def test_rows_that_a_token_bucket_asks_to_wait_all_succeed() -> None:
    per_s, free_s = 10.0, 0.0

    def script(send: Send) -> Step:
        nonlocal free_s
        if send.at_s < free_s:
            return RateLimited("full", status=429, retry_after_s=free_s - send.at_s + 0.001)
        free_s = send.at_s + 1 / per_s
        return OK

    async def main() -> None:
        retry = retry_of(ScriptedBackend(script))
        outcomes = await asyncio.gather(*(retry.send(Request(body={}), Call()) for _ in range(200)))
        assert all(outcome.is_success for outcome in outcomes)
        assert now_s() < 1.5 * 200 / per_s

    virtual_run(main())


def test_rows_that_are_refused_again_and_again_are_retried_before_their_deadline() -> None:
    def script(send: Send) -> Step:
        return RateLimited("full", status=429, retry_after_s=1.0) if send.at_s < 18 else OK

    async def main() -> None:
        retry, calls = retry_of(ScriptedBackend(script)), [Call(deadline_s=20.0) for _ in range(50)]
        outcomes = await asyncio.gather(*(retry.send(Request(body={}), call) for call in calls))
        assert all(outcome.is_success for outcome in outcomes)

    virtual_run(main())


def test_a_429_has_ten_times_the_retries() -> None:
    error = RateLimited("full", status=429, retry_after_s=1.0)
    outcome, backend = call_once([error], max_retries=3)
    assert len(backend.sends) == 31
    assert outcome.status == "exhausted"


def test_429s_cost_a_row_none_of_its_other_retries() -> None:
    script = [RateLimited("full", retry_after_s=1.0)] * 20 + [broken()] * 3 + [OK]
    outcome, _ = call_once(script, max_retries=3)
    assert outcome.is_success


def test_a_bad_reply_is_tried_twice_more() -> None:
    outcome, backend = call_once([BadReply("not JSON")])
    assert (len(backend.sends), outcome.status) == (3, "exhausted")
    outcome, _ = call_once([BadReply("x"), broken(), BadReply("x"), broken(), OK])
    assert outcome.is_success
    outcome, backend = call_once([BadReply("x")], max_retries=1)
    assert len(backend.sends) == 2


def test_a_stream_that_has_begun_is_not_tried_again() -> None:
    class Begun(ScriptedBackend):
        async def send(self, request: Request, call: Call, sink: Any = None) -> Outcome:
            call.committed = True
            return await super().send(request, call, sink)

    async def main() -> None:
        backend = Begun([Disconnected("cut")])
        outcome = await retry_of(backend).send(Request(), Call())
        assert (len(backend.sends), outcome.status) == (1, "exhausted")

    virtual_run(main())


def test_the_rows_deadline_is_kept_and_named() -> None:
    outcome, backend = call_once([broken()], call=Call(deadline_s=5.0), max_retries=100, base_s=1.0)
    assert isinstance(outcome.error, TimedOut)
    assert outcome.error.phase == "row"
    assert backend.sends[-1].at_s < 5.0
    assert outcome.error.hint == (
        "raise --row-deadline, or in Python row_deadline_s or the call's deadline_s; "
        f"attempt {len(backend.sends)}, the last, ended with: the server failed: HTTP 500"
    )
    assert (outcome.status, outcome.attempts) == ("exhausted", len(backend.sends))


def test_a_wait_past_the_deadline_ends_the_row_at_once() -> None:
    async def main() -> None:
        backend = ScriptedBackend([RateLimited("full", retry_after_s=60.0)])
        outcome = await retry_of(backend).send(Request(), Call(deadline_s=30.0))
        assert isinstance(outcome.error, TimedOut)
        assert now_s() == 0

    virtual_run(main())


@pytest.mark.parametrize(("deadline_s", "sends"), [(7.0, 1), (7.001, 2)])
def test_a_retry_begins_before_the_deadline_or_not_at_all(deadline_s: float, sends: int) -> None:
    error = RateLimited("full", retry_after_s=7.0)
    outcome, backend = call_once([error, OK], call=Call(deadline_s=deadline_s))
    assert len(backend.sends) == sends
    assert outcome.is_success == (sends == 2)


def test_a_call_says_until_when_its_server_asked_it_to_wait() -> None:
    async def main() -> None:
        errors = [RateLimited("full", retry_after_s=7.0), broken()]
        retry = retry_of(ScriptedBackend([*errors, OK]))
        call = Call()
        waits: list[float] = []
        call.on_wait = lambda: waits.append(call.again_s)
        assert (await retry.send(Request(), call)).is_success
        # Of its own back-off it says nothing, nor of a wait that is over.
        assert waits == [7.0, -math.inf]
        assert call.again_s == -math.inf

    virtual_run(main())


def test_a_withdrawn_call_was_no_attempt_and_may_be_sent_again() -> None:
    async def main() -> None:
        retry = retry_of(ScriptedBackend([broken(), Withdrawn("taken back"), OK]))
        call = Call()
        outcome = await retry.send(Request(), call)
        assert isinstance(outcome.error, Withdrawn)
        assert (outcome.attempts, call.attempts) == (1, 1)
        outcome = await retry.send(Request(), call)
        assert (outcome.is_success, outcome.attempts) == (True, 2)

    virtual_run(main())


def test_a_call_that_may_go_elsewhere_waits_only_for_the_budget() -> None:
    """The first two times, and whenever the endpoint is only full."""
    elsewhere = frozenset({"scripted"})
    full = RateLimited("full", retry_after_s=60.0)
    script = [broken(), broken(), full, full, broken(), OK]
    outcome, backend = call_once(script, call=Call(avoid=elsewhere), base_s=100.0, cap_s=100.0)
    assert outcome.is_success
    assert gaps(backend)[:4] == [0.0] * 4
    assert gaps(backend)[4] > 1
    waits: list[float] = []
    call = Call(avoid=elsewhere)
    call.on_wait = lambda: waits.append(call.again_s)
    call_once([full, OK], call=call)
    assert waits == [-math.inf]


def test_an_outage_raises_the_back_off_by_one_step_for_each_failure() -> None:
    longest_s = 0.0
    for seed in range(30):
        _, backend = call_once([unreachable(), broken(), OK], base_s=1.0, seed=seed)
        longest_s = max(longest_s, gaps(backend)[1])
    assert 1 < longest_s <= 2


def test_no_connection_costs_no_attempt_of_the_row() -> None:
    script = [unreachable()] * 60 + [broken()] * 2 + [OK]
    outcome, _ = call_once(script, max_retries=2)
    assert outcome.is_success


def test_no_connection_waits_for_the_endpoint_and_not_for_ever() -> None:
    async def main(room_s: float, least_s: float, most_s: float) -> None:
        backend = ScriptedBackend([unreachable(), OK], room_s=room_s)
        outcome = await retry_of(backend, cap_s=20.0).send(Request(), Call())
        assert outcome.is_success
        assert least_s <= now_s() <= most_s

    virtual_run(main(4.0, 4.0, 5.0))
    # A full limit answers `inf`, and the row must not be given up for that.
    virtual_run(main(float("inf"), 20.0, 21.0))


def test_without_retries_no_connection_is_final() -> None:
    outcome, backend = call_once([unreachable()], max_retries=0)
    assert (outcome.status, len(backend.sends)) == ("exhausted", 1)


def test_the_listener_hears_each_wait_begin_and_end() -> None:
    heard = Heard()
    call_once([broken(), RateLimited("full", retry_after_s=3.0), OK], listener=heard)
    kinds = [type(event) for event in heard.events]
    assert kinds == [RetryScheduled, RetryStarted, RetryScheduled, RetryStarted]
    assert isinstance(heard.events[2], RetryScheduled)
    assert (heard.events[2].error, heard.events[2].wait_s) == ("rate_limited", 3.0)


def test_the_listener_hears_when_a_wait_begins_and_what_it_is_for() -> None:
    heard = Heard()
    full = RateLimited("the endpoint is full", status=429, retry_after_s=3.0)
    call_once([full, full, OK], latency_s=0.5, listener=heard)
    waits = [event for event in heard.events if isinstance(event, RetryScheduled)]
    assert [event.at_s for event in waits] == [0.5, 4.0]
    assert {event.what for event in waits} == {"the endpoint is full"}


def test_the_answer_of_a_retry_goes_to_the_sink_of_its_call() -> None:
    async def main() -> None:
        texts: list[str] = []

        class Keeps(Sink):
            async def put(self, chunk: Chunk) -> None:
                texts.append(chunk.text)

        retry = retry_of(ScriptedBackend([broken(), OK]))
        assert (await retry.send(Request(), Call(), Keeps())).is_success
        assert texts == ["ok"]

    virtual_run(main())


def test_a_waiting_row_can_be_cancelled() -> None:
    async def main() -> None:
        heard = Heard()
        backend = ScriptedBackend([RateLimited("full", retry_after_s=60.0)])
        task = asyncio.create_task(retry_of(backend, listener=heard).send(Request(), Call()))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [type(event) for event in heard.events] == [RetryScheduled, RetryStarted]
        assert backend.in_flight == 0

    virtual_run(main())


# A poison row: one that draws the same 5xx every time while its neighbours succeed.


async def crowd(retry: Any, rows: Sequence[str], *, at_once: int = 10) -> dict[str, Outcome]:
    """The outcomes of all rows, some of them at once."""
    places, outcomes = asyncio.Semaphore(at_once), {}

    async def one(row: str) -> None:
        async with places:
            outcomes[row] = await retry.send(Request(body=row), Call())

    async with asyncio.TaskGroup() as group:
        for row in rows:
            group.create_task(one(row))
    return outcomes


def poisoned(step: Callable[[Send], Any]) -> Callable[[Send], Any]:
    return lambda send: step(send) if send.request.body == "poison" else OK


ROWS = ["poison", *(f"row {number}" for number in range(400))]


def test_a_poison_row_is_given_up_early_and_named() -> None:
    async def main() -> None:
        backend = ScriptedBackend(poisoned(lambda send: broken(502)), latency_s=0.1)
        outcomes = await crowd(retry_of(backend, max_retries=50), ROWS)
        poison = outcomes.pop("poison")
        assert all(outcome.is_success for outcome in outcomes.values())
        assert poison.attempts == 5
        assert poison.error is not None
        assert poison.error.what.startswith(
            "HTTP 502 5 times while other rows succeeded, so this row is the likely cause"
        )
        assert poison.error.hint == "check this row's content"

    virtual_run(main())


def test_a_row_with_changing_faults_keeps_its_retries() -> None:
    async def main() -> None:
        backend = ScriptedBackend(
            poisoned(lambda send: broken(500 + send.attempt % 2)), latency_s=0.1
        )
        outcomes = await crowd(retry_of(backend, max_retries=12), ROWS)
        assert outcomes["poison"].attempts == 13

    virtual_run(main())


def test_when_the_whole_server_fails_no_row_is_blamed() -> None:
    async def main() -> None:
        backend = ScriptedBackend(lambda send: OK if send.at_s > 60 else broken(), latency_s=0.1)
        outcomes = await crowd(retry_of(backend, max_retries=100), ROWS[:50], at_once=50)
        assert all(outcome.is_success for outcome in outcomes.values())

    virtual_run(main())


def test_a_lone_row_is_not_blamed() -> None:
    outcome, backend = call_once([broken()], max_retries=8)
    assert len(backend.sends) == 9
    assert outcome.error is not None
    assert "likely cause" not in outcome.error.what


@pytest.mark.parametrize(
    ("succeeding", "failing", "is_blamed"),
    [(20, 0, True), (19, 0, False), (27, 3, True), (26, 3, False), (27, 4, False)],
)
def test_a_row_is_blamed_from_twenty_neighbours_on_of_which_nine_in_ten_succeeded(
    succeeding: int, failing: int, *, is_blamed: bool
) -> None:
    def step(send: Send) -> Any:
        if send.request.body == "poison":
            return broken(502)
        return Rejected("bad") if send.request.body == "bad" else OK

    async def main() -> None:
        backend = ScriptedBackend(step, latency_s=1.0)
        retry = retry_of(backend)
        poison = asyncio.create_task(retry.send(Request(body="poison"), Call()))
        # All neighbours end between its first failure and its fifth.
        await asyncio.sleep(1.5)
        await crowd(retry, ["bad"] * failing + ["good"] * succeeding, at_once=40)
        assert (await poison).attempts == (5 if is_blamed else 9)

    virtual_run(main())


def test_neighbours_that_succeeded_before_its_first_failure_say_nothing_of_a_row() -> None:
    async def main() -> None:
        def latency_s(send: Send) -> float:
            return 60.0 if send.request.body == "poison" and send.attempt == 1 else 0.1

        backend = ScriptedBackend(poisoned(lambda send: broken(502)), latency_s=latency_s)
        outcomes = await crowd(retry_of(backend, max_retries=8), ROWS)
        assert outcomes["poison"].attempts == 9

    virtual_run(main())


# Retries as a share of traffic.


def test_retries_stay_a_share_of_traffic_and_all_rows_end() -> None:
    """Every first attempt fails, so 2,000 rows want 2,000 retries within a second."""

    async def main() -> None:
        backend = ScriptedBackend(lambda send: broken() if send.attempt == 1 else OK)
        retry = retry_of(backend, floor_per_s=10.0, share=0.25, base_s=0.001)
        rows = [f"row {number}" for number in range(2000)]
        outcomes = await crowd(retry, rows, at_once=2000)
        assert all(outcome.is_success for outcome in outcomes.values())
        retries = [send.at_s for send in backend.sends if send.attempt > 1]
        early = sum(at_s <= 1.0 for at_s in retries)
        # What was saved up (100), the share of 2,000 (at most what may be saved), and the floor.
        assert early <= 100 + 0.25 * 2000 + 10
        assert max(retries) == pytest.approx((2000 - 100) / 10, rel=0.02)

    virtual_run(main())


def test_retries_are_earned_at_the_stated_pace() -> None:
    """Rows that may go elsewhere wait for nothing but the budget."""

    async def main() -> None:
        backend = ScriptedBackend(lambda send: broken() if send.attempt == 1 else OK)
        retry = retry_of(backend, floor_per_s=2.0, share=0.0)

        async def fail_once(rows: int) -> list[float]:
            since_s, before = now_s(), len(backend.sends)
            calls = [Call(avoid=frozenset({"scripted"})) for _ in range(rows)]
            await asyncio.gather(*[retry.send(Request(), call) for call in calls])
            return [send.at_s - since_s for send in backend.sends[before + rows :]]

        # Ten seconds' worth is saved up at first.
        assert await fail_once(20) == [0.0] * 20
        await asyncio.sleep(5.0)
        assert await fail_once(12) == pytest.approx([*[0.0] * 10, 0.5, 1.0])

    virtual_run(main())


def test_a_budget_gives_what_is_earned_and_a_refusal_costs_nothing() -> None:
    budget = RetryBudget(RetryPolicy(floor_per_s=0.5, share=0.25))
    assert [budget.take(0.0, 0) for _ in range(12)] == [True] * 10 + [False] * 2
    # A second earns half a retry, and a first attempt a quarter.
    assert not budget.take(1.0, 1)
    assert budget.take(1.0, 2)
    assert not budget.take(1.0, 2)


def test_429s_with_a_wish_spend_nothing_of_the_share() -> None:
    async def main() -> None:
        error = RateLimited("full", retry_after_s=1.0)
        backend = ScriptedBackend(lambda send: error if send.attempt == 1 else OK)
        rows = [f"row {number}" for number in range(1000)]
        await crowd(retry_of(backend), rows, at_once=1000)
        assert now_s() == pytest.approx(1.0)

    virtual_run(main())


@pytest.mark.parametrize(
    "settings",
    [
        {"max_retries": -1},
        {"max_retries": 101},
        {"base_s": 0.0},
        {"cap_s": -1.0},
        {"floor_per_s": 0.0},
        {"share": 1.1},
        {"share": float("nan")},
    ],
)
def test_a_policy_has_bounds(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        RetryPolicy(**settings)


def test_closing_closes_the_backend() -> None:
    async def main() -> None:
        backend = ScriptedBackend([OK])
        await retry_of(backend).aclose()
        assert backend.is_closed

    virtual_run(main())


def test_closing_ends_the_wait_for_the_next_attempt() -> None:
    async def main() -> None:
        retry = retry_of(ScriptedBackend([RateLimited("full", status=429, retry_after_s=900.0)]))
        task = asyncio.create_task(retry.send(Request(body={}), Call()))
        await asyncio.sleep(1)
        await retry.aclose()
        async with asyncio.timeout(1):
            outcome = await task
        assert (outcome.status, outcome.attempts, len(outcome.tried)) == ("rejected", 1, 1)
        assert not task.cancelling()

    virtual_run(main())


# The scripted backend itself, which is shipped for users.


def test_a_script_is_played_in_order_and_its_last_step_repeats() -> None:
    async def main() -> None:
        backend = ScriptedBackend([broken(), OK], latency_s=2.0)
        outcomes = [await backend.send(Request(body=number), Call()) for number in range(3)]
        assert [outcome.status for outcome in outcomes] == ["exhausted", "succeeded", "succeeded"]
        assert [outcome.latency_s for outcome in outcomes] == [2.0, 2.0, 2.0]
        assert [(send.number, send.request.body, send.at_s) for send in backend.sends] == [
            (1, 0, 0.0),
            (2, 1, 2.0),
            (3, 2, 4.0),
        ]
        outcomes[1].attempts = 9
        assert outcomes[2].attempts == 1

    virtual_run(main())


def test_a_sink_gets_the_text_and_the_call_is_committed() -> None:
    async def main() -> None:
        chunks: list[Chunk] = []

        class Keeps(Sink):
            async def put(self, chunk: Chunk) -> None:
                chunks.append(chunk)

        call = Call()
        await ScriptedBackend([OK]).send(Request(), call, Keeps())
        assert [chunk.text for chunk in chunks] == ["ok"]
        assert call.committed

    virtual_run(main())


def test_cancelled_sends_are_counted() -> None:
    async def main() -> None:
        backend = ScriptedBackend([OK], latency_s=lambda send: 10.0 * send.number)
        tasks = [asyncio.create_task(backend.send(Request(), Call())) for _ in range(3)]
        await asyncio.sleep(15)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (backend.cancelled, backend.in_flight, backend.most_in_flight) == (1, 0, 3)
        assert now_s() == 30

    virtual_run(main())


def test_an_empty_script_is_refused() -> None:
    with pytest.raises(ConfigError, match="script is empty"):
        ScriptedBackend([])
