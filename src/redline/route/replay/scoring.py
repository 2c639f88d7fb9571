"""Replays the calls of a trace with each strategy, in virtual time, on servers fitted to the trace.

The pool, its strategies, its breakers and the retries are redline's own; servers are simulated, see
`service`. In a closed loop, workers make the recorded calls in order; a worker makes its next call
when its previous one has ended. In an open loop, calls arrive at their recorded times. Each seed
redraws the variation in work that tokens do not explain, equally for all strategies.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path

import msgspec
from msgspec.structs import replace

from redline.calls import Call, Retry
from redline.errors import ConfigError
from redline.process import counted
from redline.route.balance import STRATEGIES, Strategy, strategy_of
from redline.route.member import Seat
from redline.route.pool import Pool
from redline.route.replay.results import (
    MOST_OFF,
    Replay,
    Scored,
    Seeded,
    best_of,
    too_few,
)
from redline.route.replay.server import PromptCache, Replayed, ReplayServer, request_of
from redline.route.replay.service import (
    LEAST_CALLS,
    Served,
    Service,
    fitted,
    guessed,
    mean_s,
    most_at_once,
    quantile,
)
from redline.testing import VirtualClock, virtual_run
from redline.timeline import CallEnded, EndpointFacts, RecordedRun, Trace, Tried, read_trace

SEEDS = (1, 2, 3, 4, 5)
# This many calls can be replayed about forty times in a minute: eight strategies, five seeds each.
MOST_CALLS = 5000
_OTHER_DRAWS = 1_000_000
# Errors of a working server: an attempt that ends with one does not show the server's speed.
_NOT_OF_SERVERS = frozenset({"rate_limited", "rejected", "over_limit", "refused", "unpaid"})


class _Recorded(msgspec.Struct, frozen=True):
    """The runs of a trace, joined into one. calls: by arrival, in seconds from the first arrival.

    workers: see RunBegan, but at most as many as calls were in flight at once.
    """

    endpoints: tuple[EndpointFacts, ...]
    services: dict[str, Service]
    calls: list[CallEnded]
    workers: int
    balance: str


def replay(
    path: Path,
    *,
    strategies: Sequence[str] | None = None,
    seeds: Sequence[int] = SEEDS,
    most: int = MOST_CALLS,
) -> Replay:
    """Replays the latest `most` calls of the trace at `path` with each strategy.

    Only answered calls are replayed. strategies: names from STRATEGIES; None for all. The recorded
    strategy is always included. seeds: each strategy is replayed once with each seed.
    Raises ConfigError for a file that is not a trace, for a trace of one endpoint, with too few
    answers or of a strategy unknown to this version; KeyError for an unknown name in `strategies`.
    """
    trace = read_trace(path, most)
    recorded, notes = _recorded(trace)
    compared = [*(STRATEGIES if strategies is None else strategies)]
    if recorded.balance not in compared:
        compared.append(recorded.balance)
    scored = [
        Scored(strategy=name, runs=[_seeded(recorded, name, seed) for seed in seeds])
        for name in compared
    ]
    figure = "makespan_s" if recorded.workers else "mean_s"
    own = _summary(0, recorded.calls, recorded.endpoints)
    again = next(one for one in scored if one.strategy == recorded.balance)
    off = again.mean("mean_s") / own.mean_s - 1
    if abs(off) > MOST_OFF:
        notes.append(
            f"the model does not fit the servers: replayed as recorded, calls have a mean latency "
            f"{abs(off):.0%} {'longer' if off > 0 else 'shorter'} than in the trace"
        )
    return Replay(
        trace=str(path),
        workers=recorded.workers,
        calls=len(recorded.calls),
        total=trace.total,
        balance=recorded.balance,
        services=recorded.services,
        recorded=own,
        scored=scored,
        figure=figure,
        off=off,
        best=best_of(scored, recorded.balance, figure),
        notes=notes,
    )


def _recorded(trace: Trace) -> tuple[_Recorded, list[str]]:
    """Joins the runs that have the endpoints of the last run; also returns notes on the trace."""
    last = trace.runs[-1].began
    notes = list[str]()
    if len(last.endpoints) < 2:
        raise ConfigError(
            "the trace is of a run with one endpoint: there is nothing to choose",
            hint="record a run with several: --endpoint a --endpoint b",
        )
    names = [one.name for one in last.endpoints]
    alike = [run for run in trace.runs if [one.name for one in run.began.endpoints] == names]
    if trace.is_cut:
        notes.append("its last record was cut off")
    if trace.damaged:
        notes.append(f"{counted(trace.damaged, 'line is', 'lines are')} not readable as a record")
    if dropped := sum(run.dropped for run in trace.runs):
        were = counted(dropped, "call was", "calls were")
        notes.append(f"{were} not recorded, because the disk did not keep up")
    if others := len(trace.runs) - len(alike):
        notes.append(f"{others:,} of its {len(trace.runs):,} runs had other endpoints")
    calls = _in_a_row(alike)
    answered = [call for call in calls if call.outcome == "succeeded"]
    if len(answered) < LEAST_CALLS:
        raise too_few(len(answered))
    services = _services(last.endpoints, calls)
    few = [name for name, service in services.items() if not service.is_own]
    if few:
        notes.append(
            f"too few calls to estimate the speed of {', '.join(few)} (fewer than "
            f"{LEAST_CALLS}): "
            "guessed from those calls and the other endpoints"
        )
    workers = min(last.workers, most_at_once((call.arrived_s, call.done_s) for call in calls))
    # A run without --balance uses the default.
    balance = last.balance or STRATEGIES[0]
    if balance not in STRATEGIES:
        raise ConfigError(
            f"the trace was recorded with a strategy that this version of redline does not know: "
            f"{balance}",
            hint="replay it with the version of redline that recorded it",
        )
    found = _Recorded(last.endpoints, services, answered, workers, balance)
    return found, notes


def _in_a_row(runs: Sequence[RecordedRun]) -> list[CallEnded]:
    """Returns the calls of all runs by arrival, with each run moved to the end of the previous one.

    Times are in seconds from the first arrival.
    """
    found, offset_s = list[CallEnded](), 0.0
    for run in runs:
        if not run.calls:
            continue
        shift_s = offset_s - min(call.arrived_s for call in run.calls)
        for call in sorted(run.calls, key=lambda call: call.arrived_s):
            tried = tuple(
                replace(
                    one,
                    done_s=one.done_s + shift_s,
                    sent_s=None if one.sent_s is None else one.sent_s + shift_s,
                )
                for one in call.tried
            )
            found.append(
                replace(
                    call,
                    arrived_s=call.arrived_s + shift_s,
                    done_s=call.done_s + shift_s,
                    tried=tried,
                )
            )
        offset_s = max(call.done_s for call in found)
    return found


def _services(endpoints: Sequence[EndpointFacts], calls: Sequence[CallEnded]) -> dict[str, Service]:
    """Returns each endpoint's service, fitted to its answers, or guessed if these are too few."""
    attempts = {one.name: _served(one.name, calls) for one in endpoints}
    own = {name: fitted(served) for name, served in attempts.items()}
    known = [name for name, service in own.items() if service is not None]
    # If every endpoint has too few answers, all answers are fitted together.
    slowest = [one for served in attempts.values() for one in served]
    if known:
        slowest = max((attempts[name] for name in known), key=mean_s)
    usual = fitted(slowest)
    if usual is None:
        raise too_few(len(slowest))
    return {
        name: guessed(attempts[name], usual) if found is None else found
        for name, found in own.items()
    }


def _served(name: str, calls: Sequence[CallEnded]) -> list[Served]:
    """Returns the attempts at one endpoint that show the server's speed, by the time of sending.

    Attempts that ended with an error in _NOT_OF_SERVERS are left out.
    """
    found = [
        (one.sent_s, one, call)
        for call in calls
        for one in call.tried
        if one.endpoint == name and one.sent_s is not None and one.error not in _NOT_OF_SERVERS
    ]
    cache, served = PromptCache(), list[Served]()
    for sent_s, one, call in sorted(found, key=itemgetter(0)):
        tokens, output = call.input_tokens or 0, call.output_tokens or 0
        cached = tokens * cache.share(call.blocks)
        served.append(Served(sent_s, one.done_s, tokens - cached, cached, output, not one.error))
    return served


def _seeded(recorded: _Recorded, strategy: str, seed: int) -> Seeded:
    """Runs one replay. The seed determines the variation of the work and the random choices."""

    async def main() -> Seeded:
        clock = VirtualClock(asyncio.get_running_loop())
        seats = [
            Seat(
                name=one.name,
                make=partial(ReplayServer, one, recorded.services[one.name], clock),
                weight=one.weight,
                price=(one.input_price or 0.0) + (one.output_price or 0.0),
            )
            for one in recorded.endpoints
        ]
        # A generator of its own: otherwise the pool's draws would correlate with the choices.
        balance = strategy_of(strategy, random.Random(seed + _OTHER_DRAWS))
        pool = Pool(seats, balance, clock=clock, seed=seed)
        ended = await _send_all(recorded, pool, balance, seed)
        await pool.aclose()
        return _summary(seed, ended, recorded.endpoints)

    return virtual_run(main(), limit_s=math.inf)


async def _send_all(
    recorded: _Recorded, pool: Pool, strategy: Strategy, seed: int
) -> list[CallEnded]:
    """Sends the recorded calls; returns them with the times and outcomes of this replay."""
    loop, ended = asyncio.get_running_loop(), list[CallEnded]()
    backend = Retry(pool, clock=VirtualClock(loop), seed=seed)
    has_text = bool(strategy.needs)
    begun_s, left = loop.time(), iter(enumerate(recorded.calls))

    async def send(number: int, call: CallEnded) -> None:
        arrived_s = loop.time()
        replayed = Replayed(call, random.Random(seed * 1_000_003 + number))
        outcome = await backend.send(
            request_of(replayed, has_text=has_text), Call(priority=call.priority)
        )
        done_s = loop.time() - begun_s
        ended.append(
            replace(
                call,
                arrived_s=arrived_s - begun_s,
                done_s=done_s,
                outcome="succeeded" if outcome.error is None else outcome.error.kind,
                tried=(Tried(endpoint=outcome.endpoint, done_s=done_s),),
            )
        )

    async def work() -> None:
        for number, call in left:
            await send(number, call)

    async with asyncio.TaskGroup() as group:
        for _ in range(recorded.workers):
            group.create_task(work())
        if not recorded.workers:
            for number, call in left:
                await asyncio.sleep(begun_s + call.arrived_s - loop.time())
                group.create_task(send(number, call))
    return ended


def _summary(seed: int, calls: Sequence[CallEnded], endpoints: Sequence[EndpointFacts]) -> Seeded:
    latencies_s = sorted(call.done_s - call.arrived_s for call in calls)
    answered = defaultdict[str, list[CallEnded]](list)
    for call in calls:
        if call.outcome == "succeeded" and call.tried:
            answered[call.tried[-1].endpoint].append(call)
    return Seeded(
        seed=seed,
        mean_s=statistics.fmean(latencies_s),
        p50_s=quantile(latencies_s, 0.5),
        p99_s=quantile(latencies_s, 0.99),
        makespan_s=max(call.done_s for call in calls) - min(call.arrived_s for call in calls),
        cost_usd=_cost_usd(answered, endpoints),
        failed=sum(call.outcome != "succeeded" for call in calls),
        answers={name: len(own) for name, own in answered.items()},
    )


def _cost_usd(
    answered: Mapping[str, Sequence[CallEnded]], endpoints: Sequence[EndpointFacts]
) -> float | None:
    """Returns the cost of the answered calls, at the prices of the endpoints that answered them.

    None if a price is unknown.
    """
    cost_usd = 0.0
    for one in endpoints:
        if one.input_price is None or one.output_price is None:
            return None
        own = answered.get(one.name, ())
        read = sum(call.input_tokens or 0 for call in own)
        written = sum(call.output_tokens or 0 for call in own)
        cost_usd += (read * one.input_price + written * one.output_price) / 1e6
    return cost_usd
