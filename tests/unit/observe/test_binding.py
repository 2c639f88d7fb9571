"""What binds, decided from windows alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from redline.observe import (
    Binding,
    Cause,
    bindings,
    current,
    stretches,
    summary_of,
    time_by_phase,
)
from redline.timeline import LimitUse, Phases, Sketch, Totals, Window

draw = random.Random(1)


def window(second: int, held: dict[str, int], **fields: Any) -> Window:
    usual = {"in_flight": 16.0, "slots": 16.0, "samples": sum(held.values()) or 10}
    return Window(begin_s=second, end_s=second + 1.0, held=held, **{**usual, **fields})


def latencies(count: int, median_s: float, sigma: float = 0.05) -> Sketch:
    return Sketch.of(median_s * draw.lognormvariate(0, sigma) for _ in range(count))


def full(first: Sketch, later: list[Sketch]) -> list[Window]:
    """A run whose slots are all in use: the first calls, and those of each later second."""
    windows = [window(0, {"slots": 10}, latency=first, first=first)]
    return windows + [
        window(second, {"slots": 10}, latency=one) for second, one in enumerate(later, 1)
    ]


@pytest.mark.parametrize(
    ("held", "cause"),
    [
        ("input", Cause.INPUT),
        ("writer", Cause.WRITER),
        ("taker", Cause.WRITER),
        ("memory", Cause.CLIENT),
        ("limit", Cause.LIMIT),
        ("budget", Cause.LIMIT),
        ("parked", Cause.DOWN),
        ("down", Cause.DOWN),
        ("backoff", Cause.DOWN),
        ("batch", Cause.NOTHING),
        ("rest", Cause.NOTHING),
        ("client", Cause.CLIENT),
    ],
)
def test_what_most_samples_show_binds_and_is_named(held: str, cause: Cause) -> None:
    (found,) = bindings([window(0, {held: 8, "slots": 2})])
    assert found.cause is cause
    assert found.what
    assert found.evidence


def test_samples_that_mean_the_same_count_together() -> None:
    (found,) = bindings([window(0, {"input": 4, "down": 3, "backoff": 3})])
    assert found.cause is Cause.DOWN or found.cause is Cause.INPUT
    (found,) = bindings([window(0, {"down": 4, "backoff": 3, "input": 3})])
    assert found.cause is Cause.DOWN


def test_attempts_that_an_interruption_ended_are_no_evidence_of_failures() -> None:
    errors = {"cancelled": 3, "timed_out": 2}
    (found,) = bindings([window(0, {"backoff": 10}, errors=errors, error="no answer")])
    assert "2 x timed_out, the last: no answer" in found.evidence
    assert "cancelled" not in found.evidence


def test_nothing_is_said_without_evidence() -> None:
    mixed = {"input": 2, "limit": 2, "down": 2, "rest": 2, "client": 2}
    assert bindings([window(0, mixed)])[0].cause is Cause.UNDETERMINED
    assert bindings([window(0, {}, samples=0)])[0].cause is Cause.UNDETERMINED
    assert bindings([]) == []
    assert current([]) is None
    assert bindings([window(0, {"slots": 10})])[0].cause is Cause.UNDETERMINED


@pytest.mark.parametrize("sigma", [0.02, 0.5, 1.0])
@pytest.mark.parametrize("answers", [4, 64])
def test_a_latency_that_does_not_grow_is_a_lack_of_concurrency(sigma: float, answers: int) -> None:
    """Whatever the spread: of 60 runs, few are taken for a saturated endpoint by chance."""
    wrong = 0
    for _ in range(60):
        later = [latencies(answers, 0.3, sigma) for _ in range(8)]
        found = bindings(full(latencies(answers, 0.3, sigma), later))
        wrong += found[5].cause is not Cause.CONCURRENCY
    assert wrong <= 4


@pytest.mark.parametrize("ratio", [2, 4, 16])
def test_calls_that_wait_for_each_other_saturate_the_endpoint(ratio: int) -> None:
    """Of 4 * ratio calls before 4 servers, the first are answered in turn, later ones queue."""
    first = Sketch.of(0.25 * (1 + number // 4) for number in range(4 * ratio))
    later = [latencies(16, 0.25 * ratio, 0.01) for _ in range(8)]
    found = bindings(full(first, later))
    assert {one.cause for one in found} == {Cause.ENDPOINT}
    assert "times as long as at first" in found[5].evidence


@pytest.mark.parametrize(
    ("rates", "cause"), [((30, 30), Cause.ENDPOINT), ((30, 58), Cause.CONCURRENCY)]
)
def test_more_calls_in_flight_that_bring_no_more_answers_show_a_saturated_endpoint(
    rates: tuple[int, int], cause: Cause
) -> None:
    """8 calls in flight, then 16 as a search tries them; latency says nothing at the knee."""
    windows = full(latencies(8, 0.2), [])
    for second in range(1, 41):
        is_more = second % 4 == 0
        windows.append(
            window(
                second,
                {"slots": 10},
                latency=latencies(rates[is_more], 0.2),
                in_flight=16.0 if is_more else 8.0,
                slots=16.0 if is_more else 8.0,
            )
        )
    found = bindings(windows)
    assert {one.cause for one in found[1:]} == {cause}


def test_the_rate_of_one_call_in_flight_is_given_in_the_singular() -> None:
    windows = full(latencies(8, 0.2), [])
    for second, calls in enumerate([1.0, 8.0] * 8, 1):
        fields = {"in_flight": calls, "slots": calls, "latency": latencies(30, 0.2)}
        windows.append(window(second, {"slots": 10}, **fields))
    evidence = bindings(windows)[2].evidence
    assert evidence.endswith(", and 1 call in flight brings about as many answers a second")


def searched(levels: list[int], servers: list[int], sigma: float = 0.02) -> list[Window]:
    """A run whose number of calls in flight is searched for: second by second, that number.

    servers: calls that the endpoint works on at once in that second, each for 0.2 s.
    """
    first = latencies(levels[0], 0.2, sigma)
    windows = full(first, [])
    for second, (level, at_once) in enumerate(zip(levels, servers, strict=True), 1):
        answers = latencies(5 * min(level, at_once), 0.2 * max(1, level / at_once), sigma)
        fields = {"in_flight": float(level), "slots": float(level)}
        windows.append(window(second, {"slots": 10}, latency=answers, **fields))
    return windows


def causes(windows: list[Window]) -> list[Cause]:
    return [one.cause for one in bindings(windows)[1:]]


def test_a_search_that_tries_fewer_calls_than_the_endpoint_takes_is_held_back_by_the_endpoint() -> (
    None
):
    """It knows already that more would wait there. 2 of 2 calls alone do not show it."""
    levels = [8, 8, 16, 16, 8, 8, 4, 4, 2, 2, 4, 4, 6, 6, 4, 4]
    windows = searched(levels, [3] * len(levels))
    assert set(causes(windows)) == {Cause.ENDPOINT}
    # As it is seen while the run goes on.
    live = [current(windows[: count + 1]) for count in range(1, len(windows))]
    assert {one.cause for one in live if one is not None} == {Cause.ENDPOINT}
    evidence = bindings(windows)[9].evidence
    assert "2 of 2 calls are in flight" in evidence


def test_latencies_are_compared_at_one_number_of_calls_in_flight() -> None:
    """Two seconds of 6 calls before 3 servers, amid many of 3 calls that wait for nothing."""
    levels = [3] * 12 + [6] * 2 + [3] * 12
    found = bindings(searched(levels, [3] * len(levels)))
    assert found[13].cause is Cause.ENDPOINT
    assert "times as long as at first" in found[13].evidence


def test_a_search_that_climbs_is_held_back_by_its_concurrency_until_calls_wait() -> None:
    levels = [8] * 4 + [16] * 4 + [64] * 4 + [24] * 4
    found = causes(searched(levels, [40] * 16))
    assert found == [Cause.CONCURRENCY] * 8 + [Cause.ENDPOINT] * 8


def test_the_evidence_names_the_window_in_which_calls_waited() -> None:
    found = bindings(searched([8] * 3 + [64] * 6 + [24] * 6 + [8] * 6, [40] * 21))
    assert found[-1].cause is Cause.ENDPOINT
    assert "64 calls had to queue" in found[-1].evidence


def test_an_endpoint_that_has_grown_does_not_bind_any_more() -> None:
    levels = [8] * 4 + [16] * 4 + [8] * 4 + [24] * 8 + [16] * 8
    servers = [8] * 12 + [100] * 16
    found = causes(searched(levels, servers))
    assert found[4:12] == [Cause.ENDPOINT] * 8
    assert found[14:] == [Cause.CONCURRENCY] * 14


@pytest.mark.parametrize("sigma", [0.05, 0.6])
def test_a_search_before_an_endpoint_with_room_is_held_back_by_its_concurrency(
    sigma: float,
) -> None:
    """Whatever the spread, few seconds are taken for a saturated endpoint by chance."""
    levels = [8, 8, 8, 16, 16, 24, 24, 16, 16, 12, 12, 12, 16, 16, 20, 20, 24, 24, 24]
    found = [one for _ in range(100) for one in causes(searched(levels, [100] * 19, sigma))]
    assert found.count(Cause.CONCURRENCY) >= 0.9 * len(found)


def test_an_endpoint_that_becomes_slower_binds_from_then_on() -> None:
    seconds = [latencies(40, 0.1) for _ in range(5)] + [latencies(40, 0.5) for _ in range(5)]
    found = bindings(full(latencies(8, 0.1), seconds))
    assert [one.cause for one in found] == [Cause.CONCURRENCY] * 6 + [Cause.ENDPOINT] * 5
    assert [one.cause for one in stretches(found)] == [Cause.CONCURRENCY, Cause.ENDPOINT]


def test_calls_of_which_only_some_wait_saturate_the_endpoint() -> None:
    """10 calls before 6 servers, in step: four of them wait for one other."""
    waited = Sketch.of([0.2] * 10 + [0.4] * 20)
    windows = [
        window(second, {"slots": 10}, latency=waited, in_flight=10.0, slots=10.0)
        for second in range(1, 9)
    ]
    found = bindings(full(latencies(8, 0.2, 0.01), []) + windows)
    assert {one.cause for one in found[1:]} == {Cause.ENDPOINT}
    assert "median" in found[5].evidence


def test_calls_in_flight_that_differ_by_chance_say_nothing_of_what_more_would_bring() -> None:
    """Of 8 slots, 7 are sampled in use for a second, before the endpoint becomes slower."""
    first, usual = latencies(8, 0.1), {"slots": 10}
    windows = [window(0, usual, latency=first, first=first, in_flight=8.0, slots=8.0)]
    for second in range(1, 16):
        is_slow = second > 8
        answers = latencies(16 if is_slow else 70, 0.5 if is_slow else 0.1)
        fields = {"in_flight": 8.0 if second % 4 else 7.0, "slots": 8.0}
        windows.append(window(second, usual, latency=answers, **fields))
    found = causes(windows)
    # A window is judged by those around it, too: not in the seconds about the change.
    assert found[:7] + found[11:] == [Cause.CONCURRENCY] * 7 + [Cause.ENDPOINT] * 4


def test_numbers_of_calls_that_are_alike_say_nothing_of_what_more_would_bring() -> None:
    """A call less was sampled before the endpoint became slower: about 16 at once, as after it."""
    windows = full(latencies(16, 0.1), [])
    for second in range(1, 16):
        is_slow = second > 8
        answers = latencies(32 if is_slow else 160, 0.5 if is_slow else 0.1)
        in_flight = 16.0 if is_slow else 15.0
        windows.append(window(second, {"slots": 10}, latency=answers, in_flight=in_flight))
    assert causes(windows) == [Cause.CONCURRENCY] * 8 + [Cause.ENDPOINT] * 7


def test_seconds_without_an_answer_are_decided_by_those_around_them() -> None:
    """Answers take 30 s, 8 calls at once: most seconds bring none."""
    first, none = latencies(8, 30.0), Sketch()
    windows = [window(second, {"slots": 10}) for second in range(30)]
    windows += [window(30, {"slots": 10}, latency=first, first=first)]
    windows += [window(second, {"slots": 10}, latency=none) for second in range(31, 60)]
    windows += [window(60, {"slots": 10}, latency=latencies(8, 30.0))]
    found = bindings(windows)
    assert {one.cause for one in found} == {Cause.CONCURRENCY}


def limits(**held: int) -> tuple[LimitUse, ...]:
    uses = [LimitUse(name, count, 50, 100, 60.0) for name, count in held.items()]
    return tuple(sorted(uses, key=lambda use: -use.held))


def test_the_limit_that_holds_calls_is_named_and_two_that_are_near_are_named_together() -> None:
    one = window(90, {"limit": 10}, limits=limits(tokens=9, requests=1), waiting=12.0)
    loose = LimitUse("requests", 1, 20, 100, 60.0)
    (found,) = bindings([one.__class__(**{**fields(one), "limits": (one.limits[0], loose)})])
    assert (found.cause, found.what) == (Cause.LIMIT, "tokens")
    assert "12 calls wait for it" in found.evidence
    tight = (LimitUse("tokens", 9, 98, 100, 60.0),)
    (found,) = bindings([window(90, {"limit": 10}, limits=tight, waiting=1.2)])
    assert found.evidence.startswith("1 call waits for it, in 100 % of samples")
    (found,) = bindings([window(90, {"limit": 10}, limits=limits(tokens=9, requests=7))])
    assert found.what == "requests and tokens"
    used = (LimitUse("tokens", 9, 98, 100, 60.0), LimitUse("requests", 2, 97, 100, 1.0))
    (found,) = bindings([window(90, {"limit": 10}, limits=used)])
    assert found.what == "requests and tokens"


@pytest.mark.parametrize(
    ("endpoints", "what"),
    [(2, "10 requests/s at e0 and 10 requests/s at e1"), (5, "10 requests/s at several endpoints")],
)
def test_limits_of_endpoints_that_bind_in_turn_are_one_constraint(
    endpoints: int, what: str
) -> None:
    names = [f"10 requests/s at e{number}" for number in range(endpoints)]

    def at(second: int) -> Window:
        """The strictest endpoints, and one that is not near, change by chance."""
        turn = second % endpoints
        held = zip([*names[turn:], *names[:turn]], (9, 9, 8, 8, 1), strict=False)
        uses = [LimitUse(name, count, 10 if count > 1 else 5, 10, 1.0) for name, count in held]
        return window(second, {"limit": 10}, limits=tuple(uses), waiting=9.0)

    (found,) = stretches(bindings([at(second) for second in range(6)]))
    assert (found.what, found.span_s) == (what, 6.0)


def fields(of: Window) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__struct_fields__}


def test_a_limit_of_an_hour_is_as_strict_as_one_of_a_second_with_the_same_rate() -> None:
    """A run of 30 s has used little of what an hour allows."""
    used = (LimitUse("2/s", 9, 2, 2, 1.0), LimitUse("7,200/h", 1, 60, 7200, 3600.0))
    (found,) = bindings([window(29, {"limit": 10}, limits=used)])
    assert found.what == "2/s and 7,200/h"


def test_a_client_without_cpu_is_named_before_what_its_lateness_looks_like() -> None:
    busy = window(0, {"slots": 10}, busy=0.97, cpu=0.4, lag_s=0.3)
    (found,) = bindings([busy])
    assert found.cause is Cause.CLIENT
    assert "including waits for a CPU" in found.evidence
    threads = window(0, {"input": 10}, busy=0.3, cpu=1.0, lag_s=0.2)
    assert bindings([threads])[0].cause is Cause.CLIENT
    held_up = window(0, {"input": 2}, busy=0.1, cpu=0.1, lag_s=0.4, late_s=0.7)
    assert bindings([held_up])[0].what == "the client's event loop"
    # A call that waits for a limit could not go, however busy the client is.
    limited = window(0, {"limit": 10}, busy=0.97, limits=limits(requests=10))
    assert bindings([limited])[0].cause is Cause.LIMIT


def test_a_stopped_client_and_a_disk_that_blocks_are_told_apart() -> None:
    stopped = window(0, {}, samples=0, stopped_s=0.9)
    blocked = window(1, {"client": 2}, write_s=0.8, lag_s=0.8)
    assert [one.cause for one in bindings([stopped, blocked])] == [Cause.CLIENT, Cause.WRITER]


def test_the_summary_has_shares_of_the_time_that_add_up() -> None:
    windows = [window(second, {"limit": 10}, limits=limits(rpm=10)) for second in range(9)]
    windows.append(window(9, {"rest": 10}))
    found = summary_of(bindings(windows))
    assert found.sentence == "bound by rpm for 90 % of the time"
    assert [one.share for one in found.shares] == pytest.approx([0.9, 0.1])
    assert summary_of([]).sentence == "nothing was recorded"


def test_a_job_with_the_batch_api_is_said_to_wait_for_it() -> None:
    found = summary_of(bindings([window(second, {"batch": 10}) for second in range(9)]))
    assert found.sentence == "bound by the Batch API for 100 % of the time"


def test_a_clause_of_what_bound_ends_before_its_share() -> None:
    down = Binding(
        cause=Cause.DOWN, what="the endpoint, which is down", evidence="", begin_s=0.0, end_s=9.0
    )
    sentence = "bound by the endpoint, which is down, for 100 % of the time"
    assert summary_of([down]).sentence == sentence


def test_the_time_by_phase_is_the_sum_of_all_windows() -> None:
    phases = Phases(grant_s=6.0, first_byte_s=1.0, unattributed_s=0.5, durable_s=9.0)
    windows = [
        window(0, {"limit": 10}, phases=phases),
        window(1, {"limit": 10}, phases=Phases(first_byte_s=1.0)),
    ]
    found = time_by_phase(windows)
    assert list(found.items()) == [
        ("durable", 9.0), ("grant", 6.0), ("first_byte", 2.0), ("unattributed", 0.5)
    ]  # fmt: skip
    assert time_by_phase([]) == {}


def test_a_cause_that_goes_away_for_a_moment_has_stayed() -> None:
    def binding(second: float, cause: Cause) -> Binding:
        return Binding(cause=cause, what=cause.value, evidence="", begin_s=second, end_s=second + 1)

    causes = [Cause.LIMIT] * 5 + [Cause.CLIENT] + [Cause.LIMIT] * 2 + [Cause.DOWN] * 4
    found = stretches([binding(second, cause) for second, cause in enumerate(causes)])
    assert [(one.cause, one.begin_s, one.end_s) for one in found] == [
        (Cause.LIMIT, 0, 8),
        (Cause.DOWN, 8, 12),
    ]


def test_a_pace_that_each_of_few_calls_waits_for_is_no_limit_that_binds() -> None:
    """44 of 60 requests a second, for only 16 calls may be in flight, one of which mostly waits."""
    fast, slow = latencies(16, 0.33), latencies(44, 0.33)

    def found(used: int, waiting: float, **more: Any) -> Binding:
        limits = (LimitUse("60 requests/s", 8, used, 60, 1.0),)
        fields = {"limits": limits, **more, "in_flight": 16 - waiting, "waiting": waiting}
        first = window(0, {"slots": 10}, latency=fast, first=fast)
        later = [window(n, {"limit": 8, "slots": 2}, latency=slow, **fields) for n in (1, 2, 3)]
        return bindings([first, *later])[-1]

    assert found(44, 1.0).cause is Cause.CONCURRENCY
    assert "a rate limit that is not used up" in found(44, 1.0).evidence
    assert found(59, 1.0).cause is Cause.LIMIT
    assert found(44, 9.0).cause is Cause.LIMIT
    # Of a limit on tokens, 16 may be less than one call takes.
    for tokens, cause in ((3, Cause.CONCURRENCY), (30, Cause.LIMIT)):
        totals = Totals(done_here=10, input_tokens=10 * tokens - 10, output_tokens=10)
        limits = (LimitUse("60 tokens/s", 8, 44, 60, 1.0),)
        assert found(44, 1.0, limits=limits, totals=totals).cause is cause
