"""What another setting would bring, from the windows of runs under a known law."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from redline.observe import (
    Setting,
    advice,
    best_of,
    expected,
    gain_text,
    measured_per_s,
    predictions,
    scores_of,
)
from redline.timeline import (
    EndpointState,
    LimitUse,
    Prediction,
    RunFacts,
    RunHistory,
    Sketch,
    Window,
)

draw = random.Random(5)
Law = Callable[[float], float]
FACTS = RunFacts(v=1, at=0.0, model="m", endpoints=("a",))


@pytest.fixture(autouse=True)
def the_same_draws() -> None:
    """Whichever tests ran before in this process."""
    draw.seed(5)


def run(
    law: Law, calls: int, *, rps: int = 0, seconds: int = 20, noise: float = 0.05, **fields: Any
) -> RunHistory:
    """A run that is limited by its slots or its rate. law: answers a second of so many calls."""
    in_flight = float(calls)
    if rps:
        found = next((n / 10 for n in range(1, 10 * calls) if law(n / 10) >= rps), None)
        in_flight = in_flight if found is None else found
    per_s = law(in_flight)
    is_limited = bool(rps) and in_flight < calls
    windows = []
    for second in range(seconds):
        # Of slow answers, a second may have none, and the next one many.
        count = int(per_s * (second + 1)) - int(per_s * second)
        latency = Sketch.of(in_flight / per_s * draw.lognormvariate(0, noise) for _ in range(count))
        held = {"limit": 10} if is_limited else {"slots": 10}
        used = min(rps, round(per_s))
        limits = (LimitUse(f"{rps} requests/s", 10 * is_limited, used, rps, 1.0),) if rps else ()
        stated: dict[str, Any] = {
            "samples": 10,
            "held": held,
            "answered": count,
            "done": count,
            "in_flight": in_flight,
            "slots": float(calls),
            "limits": limits,
            "latency": latency,
            "first": latency if second == 0 else Sketch(),
        }
        windows.append(Window(begin_s=second, end_s=second + 1.0, **(stated | fields)))
    return RunHistory(facts=FACTS, windows=windows)


def proportional(n: float) -> float:
    return 5 * n


def capped(servers: int) -> Law:
    return lambda n: 5 * min(n, servers)


def bent(servers: float, bend: float) -> Law:
    return lambda n: 5 * n / (1 + (n / servers) ** bend) ** (1 / bend)


def slots(n: float, **limits: int) -> Setting:
    return Setting(slots=n, limits={f"{name}/s": count for name, count in limits.items()})


def expect(runs: list[RunHistory], to: Setting) -> Prediction:
    found = expected(runs, to, stated(to))
    assert found is not None
    return found


def stated(setting: Setting) -> RunFacts:
    limits = tuple(f"{count} {name}" for name, count in setting.limits.items())
    return msgspec.structs.replace(FACTS, slots=int(setting.slots), limits=limits)


def test_answers_that_grew_in_proportion_go_on_to() -> None:
    runs = [run(proportional, n) for n in (4, 8, 16)]
    found = expect(runs, slots(32))
    assert found.change == "16 -> 32 calls in flight"
    assert expect(runs, slots(1)).change == "16 -> 1 call in flight"
    assert found.holds(160)
    assert found.high_per_s - found.low_per_s < 0.6 * found.likely_per_s
    assert found.before_per_s == pytest.approx(80, rel=0.03)


def test_a_full_endpoint_has_no_gain() -> None:
    runs = [run(capped(6), n) for n in (4, 8, 16)]
    found = expect(runs, slots(32))
    assert found.holds(30)
    assert gain_text(found).startswith("no gain (")
    # Half as many calls are enough.
    assert expect(runs, slots(8)).holds(30)


def test_a_limit_that_binds_is_what_to_raise() -> None:
    runs = [run(proportional, 4), run(proportional, 6), run(proportional, 64, rps=40)]
    twice = expect(runs, slots(64, requests=80))
    assert twice.change == "40 -> 80 requests/s"
    assert twice.holds(80)
    assert gain_text(expect(runs, slots(128, requests=40))).startswith("no gain (")
    assert expect(runs, slots(64, requests=20)).holds(20)
    # What the endpoint has not shown is not promised.
    assert "twice the calls in flight" in expect(runs, slots(64, requests=200)).unknown


def test_the_next_constraint_binds() -> None:
    seen = [run(capped(10), n) for n in (4, 7, 14)]
    assert expect([*seen, run(capped(10), 14, rps=40)], slots(14, requests=80)).holds(50)
    few = [run(proportional, n) for n in (4, 7, 10)]
    assert expect([*few, run(proportional, 10, rps=40)], slots(10, requests=80)).holds(50)
    busy = run(proportional, 10, rps=40, busy=0.9)
    assert expect([*few, busy], slots(20, requests=80)).high_per_s < 60


def test_few_levels_say_nothing_but_what_another_constraint_does() -> None:
    alone = [run(proportional, 64, rps=40)]
    twice = expect(alone, slots(64, requests=80))
    assert "too few different numbers of calls in flight" in twice.unknown
    assert gain_text(twice).endswith("; at most +105 %")
    assert not twice.holds(80)
    assert gain_text(expect(alone, slots(128, requests=40))).startswith("no gain (")
    starved = predictions([run(proportional, 16, held={"input": 10})])
    assert not isinstance(starved, str)
    assert all(gain_text(one).startswith("no gain (") for one in starved)
    # Three numbers that hardly differ are no three levels.
    near = [run(proportional, n) for n in (20, 23, 27)]
    assert expect(near, slots(54)).unknown


@pytest.mark.parametrize("held", ["limit", "slots"])
def test_a_limit_at_one_endpoint_is_no_cap_if_another_is_full(held: str) -> None:
    def gains(**used: int) -> set[str]:
        """Of two endpoints that have used this much of 10 requests/s."""
        uses = (LimitUse(f"10 requests/s at {name}", 10, n, 10, 1.0) for name, n in used.items())
        states = (EndpointState("a", "ready", 11, 300), EndpointState("b", "ready", 3, 3))
        fields = {"held": {held: 10}, "limits": tuple(uses), "endpoints": states}
        found = predictions([run(proportional, 4, **fields)])
        return {gain_text(one) for one in found if isinstance(one, Prediction)}

    assert gains(a=10) == gains(a=10, b=7) == {"unknown: limits bind at only some of the endpoints"}
    assert any(one.startswith("no gain (") for one in gains(a=10, b=9))


def test_a_burst_at_one_endpoint_in_a_long_window_is_no_sign_that_its_limit_binds() -> None:
    states = tuple(EndpointState(name, "ready", 8, 300) for name in ("a", "b"))
    uses = (LimitUse("9,999 requests/day at a", 0, 500, 9999, 86400.0),)
    runs = [run(proportional, n, limits=uses, endpoints=states) for n in (4, 8, 16)]
    assert not any(one.unknown for one in predictions(runs) if isinstance(one, Prediction))


def test_what_was_not_steady_does_not_count() -> None:
    steady = [run(capped(6), n) for n in (4, 8, 16)]
    wild = run(proportional, 16)
    for second, window in enumerate(wild.windows):
        if second % 2:
            fields = {name: getattr(window, name) for name in window.__struct_fields__}
            wild.windows[second] = Window(**{**fields, "in_flight": 4.0})
    assert expect([wild, *steady], slots(32)).holds(30)
    assert expect([wild], slots(32)).unknown == "the run was not steady for long enough"
    failing = run(proportional, 16, errors={"server_failed": 50})
    assert expect([failing, *steady], slots(32)).holds(30)


def test_the_rate_of_slow_answers_is_known_from_their_latency() -> None:
    found = run(lambda n: n / 14, 10, seconds=60, noise=0.2)
    assert sum(not window.answered for window in found.windows) > 3
    per_s = measured_per_s(found)
    assert per_s == pytest.approx(10 / 14, rel=0.1)


def test_attempts_that_an_interruption_ended_are_no_failures() -> None:
    stopped = run(proportional, 8, errors={"cancelled": 1000})
    assert measured_per_s(stopped) == pytest.approx(40, rel=0.05)
    assert measured_per_s(run(proportional, 8, errors={"timed_out": 1000})) is None


def test_nothing_is_predicted_where_nothing_has_changed_or_all_has() -> None:
    runs = [run(proportional, n) for n in (4, 8, 16)]
    assert expected(runs, slots(16), stated(slots(16))) is None
    assert expected([], slots(16), FACTS) is None
    other = RunFacts(v=1, at=0.0, model="another", endpoints=("a",), slots=32)
    assert expected(runs, slots(32), other) is None


def test_what_changes_by_itself_during_a_run_is_no_change_of_settings() -> None:
    same = slots(16, requests=40)
    found = run(proportional, 16, rps=20)
    found.facts = stated(same)
    # Headers have lowered the limit; at its end, the endpoint was down.
    assert expected([found], same, stated(same)) is None
    more = expect([found], slots(32, requests=40))
    assert more.change == "16 -> 32 calls in flight"
    last = msgspec.structs.replace(found.windows[-1], slots=0.0, in_flight=0.0, held={"down": 10})
    found.windows[-1] = last
    assert expected([found], same, stated(same)) is None
    assert expected([found], slots(16, requests=80), stated(slots(16, requests=80)))


@pytest.mark.slow
def test_intervals_hold_as_often_as_they_say_for_laws_of_any_bend() -> None:
    """Nineteen of twenty; at most one in ten here, since some laws are of no such kind."""
    rng, right, widths = random.Random(3), 0, []
    for _ in range(50):
        law = bent(rng.uniform(2, 150), rng.choice([1, 1.5, 2, 3, 6, 20]))
        found = expect([run(law, n, noise=0.15) for n in (4, 8, 16)], slots(32))
        right += found.holds(law(32))
        widths.append((found.high_per_s - found.low_per_s) / found.likely_per_s)
    assert right >= 45
    assert sorted(widths)[25] < 0.6


def test_advice_names_what_brings_most_and_puts_equal_gains_together() -> None:
    found = predictions([run(capped(6), n) for n in (4, 8, 16)])
    assert not isinstance(found, str)
    best = best_of(found)
    assert best is not None
    assert best.change == "another endpoint"
    assert best.holds(60)
    unknown = predictions([run(proportional, 16)])
    assert not isinstance(unknown, str)
    assert [change for change, _ in advice(unknown)] == ["32 calls in flight or another endpoint"]
    assert best_of(unknown) is None
    assert isinstance(predictions([]), str)


def test_a_search_for_calls_in_flight_would_use_another_endpoint() -> None:
    runs = [run(capped(16), n) for n in (6, 12, 24, 17)]
    searched = msgspec.structs.replace(FACTS, slots=1000)
    runs[-1] = msgspec.structs.replace(runs[-1], facts=searched)
    found = predictions(runs)
    assert not isinstance(found, str)
    more = next(one for one in found if one.change == "another endpoint")
    # 17 calls at each of the two, of which either works on 16.
    assert more.holds(2 * 80)
    assert not more.holds(85)


def test_no_gain_of_another_endpoint_is_predicted_if_only_the_first_twelve_are_recorded() -> None:
    def changes(names: str) -> list[str]:
        last = run(proportional, 16)
        last.facts = msgspec.structs.replace(FACTS, endpoints=tuple(names))
        to = msgspec.structs.replace(slots(16), endpoints=12)
        new = msgspec.structs.replace(FACTS, endpoints=tuple("abcdefghijkl"))
        found = [*predictions([last]), expected([last], to, new)]
        return [one.change for one in found if isinstance(one, Prediction)]

    assert changes("abcdefghijkm") == ["32 calls in flight"]
    assert changes("abcdefghijk") == ["32 calls in flight", "another endpoint"]


def test_a_run_is_scored_by_what_was_predicted_of_it() -> None:
    runs = [run(proportional, n) for n in (4, 8, 16)]
    for law, is_right in ((proportional, True), (capped(20), False)):
        last = run(law, 32)
        last.prediction = expect(runs, slots(32))
        (score,) = scores_of([*runs, last])
        assert score.holds is is_right
        assert score.measured_per_s == pytest.approx(law(32), rel=0.05)
    brief = run(proportional, 32, seconds=2)
    brief.prediction = runs[-1].prediction = expect(runs, slots(32))
    assert len(scores_of([*runs, brief])) == 1


def test_a_gain_in_words() -> None:
    known = Prediction(
        change="x", before_per_s=100, low_per_s=140, likely_per_s=162, high_per_s=171
    )
    assert gain_text(known) == "+62 % (40 to 71 %)"
    assert math.isclose(known.likely_per_s, 162)
    worse = Prediction(change="x", before_per_s=100, low_per_s=40, likely_per_s=50, high_per_s=60)
    assert gain_text(worse) == "-50 % (-60 to -40 %)"


def test_a_run_without_a_bound_on_its_calls_has_predictions() -> None:
    """Rows too large to be read hold it back, and a supplied backend has no slots."""
    unbound = run(proportional, 16, slots=0.0, held={"memory": 10})
    found = predictions([unbound])
    assert not isinstance(found, str)
    assert [one.change for one in found] == ["another endpoint"]
    limited = expect([unbound], slots(8))
    assert limited.change == "any number of -> 8 calls in flight"
    assert expect([unbound], slots(1)).change == "any number of -> 1 call in flight"
    ready = run(proportional, 16, rps=200, held={"memory": 10}, slots=0.0)
    assert expect([ready], slots(0, requests=400)).holds(80)
