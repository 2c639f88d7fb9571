"""A replay: its figures are those of the record, and its order of strategies is the true one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import msgspec
import pytest

from redline.errors import ConfigError, Rejected, ServerFailed
from redline.route.replay import Compared, Replay, recommended, replay
from redline.timeline import (
    VERSION,
    CallEnded,
    EndpointFacts,
    RunBegan,
    TraceFile,
    Tried,
)
from support.traces import CachingServer, TokenServer, long_prompts, record

SPEEDS = (2.0, 1.0, 0.5, 0.25)
NAMES = "abcd"
COMPARED = ("p2c", "round_robin", "weighted_score")


def servers(bound: int = 0, speeds: Sequence[float] = SPEEDS) -> list[TokenServer]:
    return [
        TokenServer(name, speed=speed, slots=4, bound=bound)
        for name, speed in zip(NAMES, speeds, strict=False)
    ]


def replayed(path: Path, *, most: int = 1000, seeds: Sequence[int] = (1, 2)) -> Replay:
    return replay(path, strategies=COMPARED, seeds=seeds, most=most)


def figure(found: Replay, strategy: str) -> float:
    return next(one for one in found.scored if one.strategy == strategy).mean(found.figure)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [{"workers": 24}, {"per_s": 4.0}])
def test_strategies_are_ranked_as_reruns_rank_them(tmp_path: Path, mode: dict[str, float]) -> None:
    """Recorded with one that is far from the best, on servers that take all calls at once."""
    path, truth = tmp_path / "t", dict[str, float]()
    for strategy in ("p2c", "weighted_score", "round_robin"):
        path.unlink(missing_ok=True)
        record(path, servers(), calls=1000, strategy=strategy, **mode)  # type: ignore[arg-type]
        alone = replay(path, strategies=(strategy,), seeds=(1,), most=1000)
        truth[strategy] = getattr(alone.recorded, alone.figure)
    found = replayed(path, seeds=(1, 2, 3))
    assert found.balance == "round_robin"
    assert found.workers == mode.get("workers", 0)
    assert found.figure == ("makespan_s" if "workers" in mode else "mean_s")
    pairs = [
        (better, worse)
        for better, worse in permutations(truth, 2)
        if truth[better] < 0.9 * truth[worse]
    ]
    assert ("p2c", "round_robin") in pairs
    for better, worse in pairs:
        assert figure(found, better) < figure(found, worse)
    # What was recorded is repeated, and what was not is foretold.
    assert abs(found.off) < 0.15
    for strategy, true in truth.items():
        assert figure(found, strategy) == pytest.approx(true, rel=0.25)
    assert recommended(found) == "p2c"


def test_servers_are_stated_with_their_fit(tmp_path: Path) -> None:
    record(tmp_path / "t", servers(), calls=800, workers=24, strategy="round_robin")
    services = replayed(tmp_path / "t").services
    for name, speed in zip(NAMES, SPEEDS, strict=True):
        service = services[name]
        # 20 ms of work a token.
        assert service.output_s == pytest.approx(0.02 / speed, rel=0.1)
        assert service.off < 0.05
        assert service.is_own
    # The fast ones were never full.
    assert [(services[name].form, services[name].at_once) for name in "cd"] == [("slots", 4)] * 2


def test_equal_servers_give_no_recommendation(tmp_path: Path) -> None:
    record(tmp_path / "t", servers(4, (1.0,) * 4), calls=600, workers=16, strategy="round_robin")
    found = replayed(tmp_path / "t")
    assert found.reliable
    assert recommended(found) is None


def test_a_failing_server_fails_in_the_replay(tmp_path: Path) -> None:
    fleet = servers(4, (1.0,) * 4)
    fleet[0].fails = lambda now_s, number: (
        ServerFailed("HTTP 500", status=500) if number % 3 == 0 else None
    )
    record(tmp_path / "t", fleet, calls=600, workers=16)
    found = replayed(tmp_path / "t")
    assert found.services["a"].failures > 0.1
    assert found.services["b"].failures == 0
    assert all(run.failed == 0 for one in found.scored for run in one.runs)


def test_errors_of_rows_are_no_failures_of_their_server(tmp_path: Path) -> None:
    fleet = servers(4, (1.0,) * 4)
    fleet[0].fails = lambda now_s, number: (
        Rejected("HTTP 400", status=400) if number % 3 == 0 else None
    )
    record(tmp_path / "t", fleet, calls=600, workers=16)
    found = replayed(tmp_path / "t")
    assert found.recorded.failed == 0
    assert {service.failures for service in found.services.values()} == {0.0}


def test_rate_limits_hold_in_the_replay(tmp_path: Path) -> None:
    """A key of one call a second takes no more, whatever its server could do."""
    facts = [
        EndpointFacts(name="a", slots=64, requests=("1/1s",)),
        EndpointFacts(name="b", slots=64, requests=("4/1s",)),
    ]
    fast = servers(speeds=(40.0, 40.0, 1.0, 1.0))[:2]
    record(tmp_path / "t", fast, calls=300, workers=16, facts=facts)
    found = replayed(tmp_path / "t")
    assert all(one.mean("makespan_s") > 0.9 * 300 / 5 for one in found.scored)
    assert next(one for one in found.scored if one.strategy == "p2c").share("a") < 0.3


def test_no_call_waits_long_for_a_token_limit_in_the_replay(tmp_path: Path) -> None:
    """The key of few tokens takes what it soon sends, as in a run, and the other one the rest."""
    records = [
        msgspec.structs.replace(one, input_tokens=50, output_tokens=50)
        for one in calls(120, "a", "b")
    ]
    found = replayed(write(tmp_path / "t", "ab", records, tokens=["600/60s", "600k/60s"]))
    # An answer takes a second, and the next call of the small key may go after ten.
    assert all(one.mean("makespan_s") < 2 * 120 for one in found.scored)
    assert all(0.05 < one.share("a") < 0.2 for one in found.scored)


def test_prices_make_costs(tmp_path: Path) -> None:
    facts = [
        EndpointFacts(name=name, input_price=1.0, output_price=price)
        for name, price in (("a", 10.0), ("b", 1.0))
    ]
    pair = servers(speeds=(1.0, 1.0))
    record(tmp_path / "t", pair, calls=300, workers=2, facts=facts)
    found = replay(tmp_path / "t", strategies=("p2c", "cheapest"), seeds=(1, 2))
    costs = {one.strategy: one.cost_usd for one in found.scored}
    assert (costs["cheapest"] or 0) < 0.9 * (costs["p2c"] or 0)
    assert found.recorded.cost_usd == pytest.approx(costs["p2c"], rel=0.3)


def test_a_strategy_draws_otherwise_than_its_pool(tmp_path: Path) -> None:
    """Of equal servers, one that draws in proportion gives each as many calls."""
    record(tmp_path / "t", servers(4, (1.0,) * 4), calls=800, workers=8)
    found = replay(tmp_path / "t", strategies=("normalized_score",), seeds=(1, 2))
    (scored,) = (one for one in found.scored if one.strategy == "normalized_score")
    assert all(0.2 < scored.share(name) < 0.3 for name in NAMES)


def test_a_replay_is_the_same_again(tmp_path: Path) -> None:
    record(tmp_path / "t", servers(4), calls=300, workers=16)
    assert replayed(tmp_path / "t") == replayed(tmp_path / "t")


def test_of_a_long_trace_the_latest_calls_are_replayed(tmp_path: Path) -> None:
    record(tmp_path / "t", servers(4), calls=500, workers=16)
    found = replayed(tmp_path / "t", most=250)
    assert (found.calls, found.total) == (250, 500)


def test_a_resumed_run_is_one_with_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        record(tmp_path / "t", servers(4), calls=200, workers=16)
    found = replayed(tmp_path / "t")
    assert found.calls == 400
    one = replayed_alone(tmp_path)
    assert found.recorded.makespan_s == pytest.approx(2 * one.recorded.makespan_s, rel=0.1)


def replayed_alone(tmp_path: Path) -> Replay:
    record(tmp_path / "alone", servers(4), calls=200, workers=16)
    return replayed(tmp_path / "alone")


def calls(count: int, *endpoints: str) -> list[CallEnded]:
    return [
        CallEnded(
            arrived_s=n,
            done_s=n + 1.0,
            outcome="succeeded",
            tried=(Tried(endpoint=endpoints[n % len(endpoints)], sent_s=n, done_s=n + 1.0),),
        )
        for n in range(count)
    ]


def write(
    path: Path,
    endpoints: str,
    records: Sequence[CallEnded],
    *,
    balance: str = "",
    tokens: Sequence[str] = (),
) -> Path:
    """tokens: the limit of each endpoint, or of none."""
    limits = [(rate,) for rate in tokens] or [()] * len(endpoints)
    facts = tuple(
        EndpointFacts(name=name, tokens=rates)
        for name, rates in zip(endpoints, limits, strict=True)
    )
    file = TraceFile(path)
    began = RunBegan(v=VERSION, at=1.0, workers=4, balance=balance, endpoints=facts)
    file.write([began, *records])
    file.close()
    return path


def test_an_endpoint_with_few_calls_is_taken_to_be_as_the_others(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "ab", [*calls(300, "a"), *calls(5, "b")])
    found = replayed(path)
    assert not found.services["b"].is_own
    assert any("too few calls to estimate the speed of b" in note for note in found.notes)
    assert recommended(found) is None


def test_a_call_above_a_token_limit_is_replayed_as_one_of_the_limit(tmp_path: Path) -> None:
    records = calls(31, "a", "b")
    records[7] = msgspec.structs.replace(records[7], input_tokens=10, output_tokens=1200)
    found = replayed(write(tmp_path / "t", "ab", records, tokens=["1000/60s"] * 2))
    assert found.calls == 31
    assert all(run.failed == 0 for one in found.scored for run in one.runs)


def test_an_unknown_strategy_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "ab", calls(300, "a", "b"), balance="fastest")
    with pytest.raises(
        ConfigError, match="a strategy that this version of redline does not know: fastest"
    ):
        replayed(path)


def test_too_few_calls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="29 answered calls, too few"):
        replayed(write(tmp_path / "t", "ab", calls(29, "a", "b")))
    with pytest.raises(ConfigError, match="has 1 answered call, too few"):
        replayed(write(tmp_path / "u", "ab", calls(1, "a", "b")))


def test_one_endpoint_leaves_no_choice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is nothing to choose"):
        replayed(write(tmp_path / "t", "a", calls(300, "a")))


def test_what_is_missing_is_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "xy", calls(3, "x", "y"))
    write(path, "ab", calls(300, "a", "b"))
    data = path.read_bytes()
    path.write_bytes(data + b"oops\n" + data[-20:-1])
    notes = " ".join(replayed(path).notes)
    assert "its last record was cut off" in notes
    assert "1 line is not readable as a record" in notes
    assert "1 of its 2 runs had other endpoints" in notes


def test_noise_is_no_advantage() -> None:
    better = Compared(better="a", worse="b", gain=0.05, error=0.02)
    assert not better.is_clear
    assert msgspec.structs.replace(better, error=0.01).is_clear
    assert not msgspec.structs.replace(better, gain=0.009, error=0.0).is_clear


def test_where_prompts_begin_alike_prefix_is_found_to_be_best(tmp_path: Path) -> None:
    """Servers whose caches hold few prompts, recorded with a strategy that ignores them."""
    fleet = [CachingServer(name, slots=4) for name in NAMES]
    record(tmp_path / "t", fleet, calls=1000, workers=16, strategy="round_robin", work=long_prompts)
    found = replay(tmp_path / "t", strategies=("p2c", "prefix", "round_robin"), seeds=(1, 2))
    service = found.services["a"]
    assert service.cached_s < 0.2 * service.input_s
    assert figure(found, "prefix") < 0.9 * figure(found, "p2c")
    assert recommended(found) == "prefix"
