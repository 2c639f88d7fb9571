"""The autoscaler is a function of its samples: bounded, reproducible, and monotone in the load."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from redline.errors import ConfigError
from redline.route.scale import Autoscaler, Decision, Sample, ScaleSettings, replay

SLOTS = 16
CALL_S = 5.0


def steady(
    load: float, *, ready: int, for_s: int, begin: Sample | None = None, noise: float = 0.0
) -> Iterator[Sample]:
    """A sample each second of a fleet that carries this many replicas' load.

    What the fleet cannot carry waits.
    """
    draw = random.Random(1)
    begin = begin or Sample(at_s=0.0)
    in_flight, ended, waiting = float(begin.in_flight), float(begin.ended), float(begin.waiting)
    answered = begin.answered
    for second in range(for_s):
        over = in_flight / CALL_S
        ended += over
        waiting += in_flight - over + load * SLOTS / CALL_S * draw.uniform(1 - noise, 1 + noise)
        in_flight = min(waiting, ready * SLOTS)
        waiting -= in_flight
        answered = max(answered, round(ended))
        yield Sample(
            at_s=begin.at_s + second + 1,
            in_flight=round(in_flight),
            waiting=round(waiting),
            ended=round(ended),
            answered=answered,
            served_s=answered * CALL_S,
            queue_wait_p95_s=waiting / (max(1, ready) * SLOTS / CALL_S),
            ready=ready,
            slots=SLOTS,
        )


def decided(samples: Iterator[Sample] | list[Sample], **options: object) -> list[Decision]:
    chosen = {"max_replicas": 40} | options
    return list(replay(samples, ScaleSettings(**chosen)))  # type: ignore[arg-type]


def any_samples(seed: int, count: int) -> list[Sample]:
    """Samples that no fleet would give."""
    draw = random.Random(seed)
    at_s, ended, answered, served_s, samples = 0.0, 0, 0, 0.0, []
    slots = draw.choice([0.0, 1.0, 16.0])
    for _ in range(count):
        at_s += draw.choice([0.0, 0.01, 1.0, 1.0, 1.0, draw.uniform(0, 100)])
        ended += draw.choice([0, draw.randrange(1_000)])
        answered += draw.choice([0, draw.randrange(1_000)])
        served_s += draw.choice([0.0, draw.uniform(0, 1e4)])
        samples.append(
            Sample(
                at_s=at_s,
                in_flight=draw.choice([0, draw.randrange(500)]),
                leaving=draw.choice([0, draw.randrange(100)]),
                waiting=draw.choice([0, draw.randrange(1_000)]),
                tokens=draw.choice([0.0, draw.uniform(0, 1e6)]),
                ended=ended,
                answered=answered,
                served_s=served_s,
                queue_wait_p95_s=draw.choice([0.0, draw.uniform(0, 100)]),
                ready=draw.choice([0, 1, draw.randrange(40)]),
                warming=draw.choice([0, draw.randrange(40)]),
                slots=slots,
            )
        )
    return samples


@given(
    some.integers(0, 2**32),
    some.integers(0, 5),
    some.integers(5, 50),
    some.sampled_from(["demand", "rps"]),
)
@settings(max_examples=100, deadline=None)
def test_any_samples_give_the_same_decisions_again_and_never_pass_the_bounds(
    seed: int, least: int, most: int, policy: str
) -> None:
    samples = any_samples(seed, 100)
    chosen = ScaleSettings(min_replicas=least, max_replicas=most, policy=policy)
    autoscaler = Autoscaler(chosen)
    decisions = [autoscaler.decide(sample) for sample in samples]
    assert decisions == replay(samples, chosen)
    assert all(least <= one.replicas <= most for one in decisions)
    before = None
    for change in autoscaler.history:
        assert change.after != change.before
        assert change.reason
        assert before is None or change.before == before
        before = change.after
    if before is not None:
        assert before == decisions[-1].replicas


@given(some.floats(0.1, 20.0), some.floats(0.1, 20.0), some.integers(1, 20))
@settings(max_examples=40, deadline=None)
def test_a_higher_load_never_has_fewer_replicas(one: float, other: float, ready: int) -> None:
    low, high = sorted((one, other))
    fewer = decided(steady(low, ready=ready, for_s=400))
    more = decided(steady(high, ready=ready, for_s=400))
    assert all(a.replicas <= b.replicas for a, b in zip(fewer, more, strict=True))


def test_a_steady_load_is_carried_at_the_target_and_then_nothing_changes() -> None:
    decisions = decided(steady(5.6, ready=8, for_s=7_200, noise=0.1))
    assert {one.replicas for one in decisions} == {8}
    assert {one.reason for one in decisions} == {""}


def test_a_fleet_whose_slo_holds_grows_to_its_target() -> None:
    autoscaler = Autoscaler(ScaleSettings(max_replicas=40))
    for sample in steady(5.5, ready=6, for_s=300):
        autoscaler.decide(sample)
    # The mean over the window rises as the first calls arrive.
    assert [str(one) for one in autoscaler.history] == [
        "demand 6.8 exceeds 6 by more than 10%: 6 -> 7",
        "demand 7.7 exceeds 7 by more than 10%: 7 -> 8",
    ]


def test_a_few_very_long_calls_change_nothing() -> None:
    """Of 80 calls in flight, 4 take 3,000 s, and one of these ends every 750 s."""
    autoscaler, answered, served_s = Autoscaler(ScaleSettings(max_replicas=40)), 0, 0.0
    for second in range(2 * 3_600):
        answered, served_s = answered + 19, served_s + 19 * 4.0
        if second % 750 == 749:
            answered, served_s = answered + 1, served_s + 3_000.0
        autoscaler.decide(
            Sample(
                at_s=float(second),
                in_flight=80,
                ended=answered,
                answered=answered,
                served_s=served_s,
                ready=8,
                slots=SLOTS,
            )
        )
    assert not autoscaler.history


def test_calls_that_queue_within_replicas_count_as_load() -> None:
    """Five replicas of 16 calls each get the calls of nine; none waits in the pool."""
    autoscaler = Autoscaler(ScaleSettings(max_replicas=40, capacity=16))
    ended, waiting = 0, 0.0
    for second in range(300):
        ended, waiting = ended + 4, waiting + 3.2
        autoscaler.decide(
            Sample(
                at_s=float(second),
                in_flight=80,
                waiting=round(waiting),
                ended=ended,
                answered=ended,
                served_s=ended * 20.0,
                ready=5,
            )
        )
    # 144 calls in flight, at 0.7 of 16 each.
    assert autoscaler.history[-1].after == 13


def test_a_queue_is_drained_by_more_replicas_than_the_load_needs() -> None:
    autoscaler = Autoscaler(ScaleSettings(max_replicas=40))
    samples = list(steady(2.8, ready=4, for_s=600))
    samples += steady(8.4, ready=4, for_s=20, begin=samples[-1])
    for sample in samples:
        autoscaler.decide(sample)
    # 12 carry the load at the target; a queue of a minute is drained in half a minute.
    last = autoscaler.history[-1]
    assert 15 <= last.after <= 20
    assert last.at_s <= 612
    assert last.reason.startswith("queue wait p95 ")
    assert " s is above 1 s, " in last.reason


def test_replicas_that_are_coming_are_counted() -> None:
    autoscaler = Autoscaler(ScaleSettings(max_replicas=400))
    samples = list(steady(2.8, ready=4, for_s=600))
    samples += steady(8.4, ready=4, for_s=60, begin=samples[-1])
    replicas = [autoscaler.decide(sample).replicas for sample in samples]
    # The queue grows for a minute, and what is asked for does not.
    assert replicas[-1] == replicas[-45]


def test_a_fleet_shrinks_to_the_highest_demand_of_the_window() -> None:
    samples = list(steady(5.6, ready=8, for_s=600))
    samples += steady(1.4, ready=8, for_s=600, begin=samples[-1])
    decisions = decided(samples)
    at_s = next(n for n, one in enumerate(decisions) if one.replicas < 8)
    assert 600 + 300 <= at_s + 1 <= 600 + 300 + 150 + 1
    assert decisions[at_s].reason.startswith("demand was at most ")
    assert 2 <= decisions[-1].replicas <= 3


@pytest.mark.parametrize(("replicas", "low", "high"), [(8, 4.1, 5.6), (2, 0.5, 1.2), (4, 1.1, 2.6)])
def test_a_fleet_that_should_not_have_shrunk_waits_longer_the_next_time(
    replicas: int, low: float, high: float
) -> None:
    autoscaler, at = Autoscaler(ScaleSettings(max_replicas=40)), Sample(at_s=0.0)
    for second in range(12 * 2_000):
        load = low if second % 2_000 < 1_000 else high
        at = next(steady(load, ready=replicas, for_s=1, begin=at))
        replicas = autoscaler.decide(at).replicas
    shrunk = [one for one in autoscaler.history if one.after < one.before]
    assert shrunk
    # The load changes every 1,000 s, and each wait ends.
    assert 4 <= len(shrunk) <= 6


def test_a_fleet_that_should_not_have_shrunk_shrinks_soon_if_half_of_that_size_suffices() -> None:
    autoscaler, at, replicas = Autoscaler(ScaleSettings(max_replicas=40)), Sample(at_s=0.0), 4
    for second in range(5_000):
        load = 0.3 if second >= 4_000 else 1.1 if second % 2_000 < 1_000 else 2.6
        at = next(steady(load, ready=replicas, for_s=1, begin=at))
        replicas = autoscaler.decide(at).replicas
    # It had to grow from 3 at 3,126 s, and waits until 7,146 s unless half of 3 suffices.
    assert autoscaler.history[-1].before == 4
    assert replicas == 1


def test_a_fleet_without_calls_is_stopped_and_one_call_starts_it() -> None:
    chosen = ScaleSettings(min_replicas=0, idle_s=120.0)
    autoscaler = Autoscaler(chosen)
    for sample in steady(0.5, ready=1, for_s=60):
        autoscaler.decide(sample)
    last = sample
    quiet = [
        Sample(
            at_s=last.at_s + second,
            ended=last.arrived,
            answered=last.answered,
            served_s=last.served_s,
            ready=1 if second < 140 else 0,
            slots=SLOTS,
        )
        for second in range(1, 600)
    ]
    replicas = [autoscaler.decide(sample).replicas for sample in quiet]
    assert replicas[100] == 1
    assert replicas[-1] == 0
    waits = Sample(at_s=quiet[-1].at_s + 1, waiting=1, ended=last.arrived)
    assert autoscaler.decide(waits) == Decision(1, "1 call waits")
    assert str(autoscaler.history[0]).endswith(": 1 -> 0")


def test_capacity_is_what_replicas_take_while_calls_wait() -> None:
    autoscaler = Autoscaler(ScaleSettings(capacity=16.0, max_replicas=40))
    for second in range(1, 100):
        autoscaler.decide(
            Sample(at_s=second, in_flight=32, waiting=9, queue_wait_p95_s=3.0, ready=4)
        )
    assert 8.0 <= autoscaler.capacity.calls < 8.1


def test_a_capacity_that_was_low_for_a_while_is_tried_again() -> None:
    autoscaler = Autoscaler(ScaleSettings(max_replicas=40))
    for second in range(1, 100):
        autoscaler.decide(
            Sample(at_s=second, in_flight=32, waiting=9, queue_wait_p95_s=3.0, ready=4, slots=16)
        )
    assert autoscaler.capacity.calls < 9
    for second in range(100, 7_300):
        autoscaler.decide(Sample(at_s=second, in_flight=32, ready=4, slots=16))
    assert autoscaler.capacity.calls > 15


def test_calls_of_more_tokens_need_more_replicas() -> None:
    def grown(tokens: float) -> int:
        autoscaler = Autoscaler(ScaleSettings(max_replicas=40))
        samples = list(steady(2.0, ready=4, for_s=300))
        replicas = 0
        for sample in samples:
            size = 100.0 if sample.at_s < 150 else tokens
            figures = {name: getattr(sample, name) for name in sample.__struct_fields__}
            figures["tokens"] = size * sample.in_flight
            # Replicas that are full of tokens make calls wait, with slots to spare.
            figures["queue_wait_p95_s"] = 2.0 if size > 100 else 0.0
            replicas = autoscaler.decide(Sample(**figures)).replicas
        return replicas

    assert grown(300.0) > grown(100.0)


def test_the_simple_formula() -> None:
    samples = [Sample(at_s=float(n), ended=n * 150 + (n % 2) * 71) for n in range(10)]
    decisions = decided(samples, policy="rps")
    assert [one.replicas for one in decisions] == [1, 4, 2, 4, 2, 4, 2, 4, 2, 4]
    assert decisions[1].reason == "221 calls arrived per second"
    fallen = decided([*samples[:2], Sample(at_s=2.0, ended=222)], policy="rps")
    assert fallen[2].reason == "1 call arrived per second"


def test_the_simple_formula_changes_the_fleet_all_the_time_at_a_steady_load() -> None:
    def changes(policy: str) -> int:
        autoscaler = Autoscaler(ScaleSettings(max_replicas=200, policy=policy))
        for sample in steady(109.0, ready=160, for_s=3_600, noise=0.1):
            autoscaler.decide(sample)
        return len(autoscaler.history)

    # 350 calls per second are at one of its steps.
    assert changes("rps") > 800
    assert changes("demand") <= 2


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"policy": "magic"}, "the scaling policy must be demand or rps, not magic"),
        ({"min_replicas": -1}, "min_replicas must be at least 0, not -1"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas must be at least 3, not 2"),
        ({"min_replicas": 0, "max_replicas": 0}, "max_replicas must be at least 1, not 0"),
        ({"target_utilization": 0.0}, "target_utilization must be above 0 and at most 1, not 0"),
        ({"tolerance": 1.0}, "the tolerance must be at least 0 and below 1, not 1"),
        ({"capacity": -1.0}, "the capacity of a replica must be at least 0 and finite, not -1"),
        ({"warm_up_s": float("nan")}, "warm_up_s must be at least 0 and finite, not nan"),
        ({"idle_s": 0.0}, "idle_s must be above 0 and finite, not 0"),
        ({"tick_s": 7.0}, "tick_s must be at most a tenth of panic_window_s, not 7"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, float], what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        ScaleSettings(**options)  # type: ignore[arg-type]
    assert caught.value.hint
