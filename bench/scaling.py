"""The autoscaler in virtual time, with the real pool: a steady load with noise, and a step.

    python bench/scaling.py [--seeds 10] [--first-seed 0] [--hours 6] [--policy demand]

Servers have 16 slots and take 60 s to start. Calls take 20 s on average, with a log-normal
distribution whose standard deviation is also 20 s. Arrivals are Poisson; their rate is drawn for
each minute, with a relative standard deviation of 5 %. Steady: the load of 5 replicas; utilization
is the busy share of the slots of running servers. Step: from the load of 3 replicas to that of 9.
The figure is the time until the p95 of the queue wait is within its SLO and stays there, in the 10
minutes after the step; then the load falls to that of 3 again. Exits with status 1 if a bar is
missed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
import record

from redline.route.scale import ScaleSettings
from redline.testing import virtual_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.scaling import Arrivals, Servers, fleet_of

MOST_CHANGES_PER_HOUR = 2.0
UTILIZATION = (0.6, 0.8)
# Of the time that a replica needs to start and that of the panic window, to be back at the SLO.
LATE = 1.1
CALL_S = 20.0
# The first hour is left out: a fleet that begins with one replica has to find its size.
SETTLED_S = 3600.0
STEP_S, FALL_S, STEP_END_S = 1800.0, 3600.0, 5400.0


class Steady(msgspec.Struct, frozen=True):
    """One run at a steady load, after the fleet has found its size."""

    changes_per_hour: float
    utilization: float
    above_slo: float
    failed: int
    dropped: int


class Step(msgspec.Struct, frozen=True):
    """One run with a threefold load from STEP_S to FALL_S. back_s: after the step."""

    back_s: float
    before: int
    most: int
    after: int
    failed: int
    dropped: int


def steady(seed: int, hours: float, settings: ScaleSettings, load: float = 5.0) -> Steady:
    """A run of an hour, to find the size, and this many hours."""

    async def main() -> Steady:
        servers = Servers()
        async with fleet_of(servers, settings) as (pool, fleet):
            arrivals = Arrivals(pool, lambda _: load, seed=seed, call_s=CALL_S)
            await arrivals.run(SETTLED_S + hours * 3600)
            samples = [one for one in fleet.samples if one.at_s >= SETTLED_S]
            changes = [one for one in fleet.history if one.at_s >= SETTLED_S]
        busy = sum(one.in_flight for one in samples)
        slots = sum(one.ready * servers.slots for one in samples)
        above = sum(one.queue_wait_p95_s > settings.queue_wait_slo_s for one in samples)
        return Steady(
            len(changes) / hours,
            busy / slots,
            above / len(samples),
            arrivals.outcomes.count(False),
            servers.dropped,
        )

    return virtual_run(main())


def step(seed: int, settings: ScaleSettings) -> Step:
    """A run with a threefold load in its middle."""

    async def main() -> Step:
        servers = Servers()
        async with fleet_of(servers, settings) as (pool, fleet):
            arrivals = Arrivals(pool, _threefold, seed=seed, call_s=CALL_S)
            await arrivals.run(STEP_END_S)
            samples = fleet.samples
        wait_s = settings.queue_wait_slo_s
        above = [
            one.at_s
            for one in samples
            if STEP_S <= one.at_s < STEP_S + 600 and one.queue_wait_p95_s > wait_s
        ]
        back_s = above[-1] + settings.tick_s if above else STEP_S
        before = next(one for one in reversed(samples) if one.at_s < STEP_S)
        last = next(one for one in reversed(samples) if one.at_s < STEP_END_S)
        return Step(
            back_s - STEP_S,
            before.ready,
            max(one.ready for one in samples if one.at_s >= STEP_S),
            last.ready,
            arrivals.outcomes.count(False),
            servers.dropped,
        )

    return virtual_run(main())


def _threefold(at_s: float) -> float:
    return 9.0 if STEP_S <= at_s < FALL_S else 3.0


def is_steady(one: Steady) -> bool:
    """It is within the bars."""
    is_well_used = UTILIZATION[0] <= one.utilization <= UTILIZATION[1]
    is_calm = one.changes_per_hour <= MOST_CHANGES_PER_HOUR
    return is_calm and is_well_used and not one.failed and not one.dropped


def follows(one: Step, settings: ScaleSettings) -> bool:
    """It is back at its SLO in time, shrinks again, and drops nothing."""
    within_s = LATE * (settings.warm_up_s + settings.panic_window_s)
    return one.back_s <= within_s and one.after < one.most and not one.failed and not one.dropped


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--policy", default="demand")
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    options = parser.parse_args()
    settings = ScaleSettings(max_replicas=40, policy=options.policy)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    servers = Servers()
    stated = {
        **{"hours": options.hours, "policy": options.policy, "seeds": len(seeds)},
        **{"slots": servers.slots, "start_s": servers.warm_up_s, "call_s": CALL_S},
        **{"most_changes_per_hour": MOST_CHANGES_PER_HOUR, "utilization": UTILIZATION},
        "late": LATE,
    }
    kept = record.Record("scaling", stated, {"arrivals": [*seeds]})
    steady_runs, steps = list[Steady](), list[Step]()
    print("seed  changes/h  utilization  above SLO  failed  dropped")
    for seed in seeds:
        one = steady(seed, options.hours, settings)
        steady_runs.append(one)
        print(
            f"{seed:4}  {one.changes_per_hour:9.2f}  {one.utilization:11.3f}  {one.above_slo:9.2%}"
            f"  {one.failed:6}  {one.dropped:7}",
            flush=True,
        )
    print("seed  back after  before  most  after  failed  dropped")
    for seed in seeds:
        step_run = step(seed, settings)
        steps.append(step_run)
        print(
            f"{seed:4}  {step_run.back_s:8.0f} s  {step_run.before:6}  {step_run.most:4}"
            f"  {step_run.after:5}  {step_run.failed:6}  {step_run.dropped:7}",
            flush=True,
        )
    is_good = all(map(is_steady, steady_runs)) and all(follows(one, settings) for one in steps)
    raw = {"steady": msgspec.to_builtins(steady_runs), "steps": msgspec.to_builtins(steps)}
    print(f"written: {kept.write(options.results, {'is_kept': is_good}, raw)}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
