"""Sets up the records of a run: its timeline, and the trace of its calls if it has one."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from redline.apis import loose_json
from redline.calls import Backend, Endpoint
from redline.calls.cost import Metered
from redline.clock import SYSTEM
from redline.job.settings import BATCHING, Job
from redline.job.work import Endpoints, Feed, Runner, Sampler, Tally
from redline.journal import Journal, Output
from redline.limits.rule import AUTO, KINDS, limit_text
from redline.process import free_name
from redline.timeline import (
    MOST_ENDPOINTS,
    MOST_LIMITS,
    NAME,
    TIMELINE_VERSION,
    VERSION,
    EndpointFacts,
    Recorder,
    RunBegan,
    RunFacts,
    TimelineFile,
    TraceFile,
)


def sampler_of(
    runner: Runner,
    feed: Feed,
    tally: Tally,
    endpoints: Endpoints,
    journal: Journal | None,
    metered: Metered | None,
) -> Sampler:
    """Returns the run's sampler, which writes the timeline if the job has an output."""
    job = runner.job
    is_found = any(one.rate == AUTO or one.is_adaptive for one in job.call_limits)
    return Sampler(
        facts=_facts_of(job, runner.source_name),
        gatherer=runner.record,
        runner=runner,
        feed=feed,
        tally=tally,
        endpoints=endpoints,
        journal=journal,
        metered=metered,
        file=None if job.output is None else TimelineFile(job.output.state_path / NAME),
        is_fixed=not is_found and job.via not in BATCHING,
    )


def set_timeline_aside(output: Output) -> None:
    """Renames the output's timeline to the first free `timeline.old-N.jsonl`.

    Call it for a new output: the results of the runs in the timeline are gone.
    """
    path = output.state_path / NAME
    # A failed rename must not stop the run, which is then appended to the old timeline.
    with suppress(OSError):
        path.rename(free_name(path, "old"))


def _facts_of(job: Job, input_name: str) -> RunFacts:
    rates = [
        limit_text(kind, rate)
        for limits in job.call_limits
        for kind in KINDS
        for rate in limits.rates(kind)
    ]
    return RunFacts(
        v=TIMELINE_VERSION,
        at=SYSTEM.wall_s(),
        pid=os.getpid(),
        host=socket.gethostname(),
        input=loose_json.paired(input_name),
        model=job.prompting.model or "",
        slots=job.slots,
        endpoints=tuple(endpoint.label for endpoint in job.endpoints)[:MOST_ENDPOINTS],
        limits=tuple(dict.fromkeys(rates))[:MOST_LIMITS],
        is_batched=job.via in BATCHING,
        has_budget=job.allowance is not None and job.allowance.picodollars is not None,
    )


def recorded(job: Job, inner: Backend, file: TraceFile, workers: int) -> Recorder:
    """Returns a backend that records the calls of `inner` in `file`. workers: see RunBegan."""
    began = RunBegan(
        v=VERSION,
        at=SYSTEM.wall_s(),
        # Rows of a followed file arrive when they are written, whatever the number of workers.
        workers=0 if job.follow else workers,
        balance=job.balance if len(job.endpoints) > 1 else "",
        endpoints=tuple(_facts(job, endpoint) for endpoint in job.endpoints),
    )
    return Recorder(inner, file, began)


def _facts(job: Job, endpoint: Endpoint) -> EndpointFacts:
    limits = endpoint.limits
    price = job.price_at(endpoint)
    rates = {kind: tuple(map(str, limits.rates(kind))) for kind in KINDS}
    return EndpointFacts(
        name=endpoint.label,
        weight=endpoint.weight,
        profile=limits.profile,
        slots=0 if limits.is_adaptive else limits.slots(),
        # A million picodollars per token are one dollar per million tokens.
        input_price=None if price is None else price.input / 1e6,
        output_price=None if price is None else price.output / 1e6,
        **rates,
    )
