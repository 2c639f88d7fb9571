"""What a run with a trace records of itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from redline.calls import Backend, Endpoint
from redline.clock import SYSTEM
from redline.job.settings import Job
from redline.limits.rule import KINDS

if TYPE_CHECKING:
    from redline.timeline import EndpointFacts, Recorder, TraceFile


def open_trace(path: Path) -> TraceFile:
    """The trace, to be closed by the caller. Raises ConfigError if it cannot be written."""
    # Imported here: a run without a trace does not pay for it.
    from redline.timeline import TraceFile

    return TraceFile(path)


def recorded(job: Job, inner: Backend, file: TraceFile, workers: int) -> Recorder:
    """`inner` with its calls recorded. workers: see RunBegan."""
    from redline.timeline import VERSION, Recorder, RunBegan

    began = RunBegan(
        v=VERSION,
        at=SYSTEM.wall_s(),
        # Rows that are read when they are written come when they come.
        workers=0 if job.follow else workers,
        balance=job.balance if len(job.endpoints) > 1 else "",
        endpoints=tuple(_facts(job, endpoint) for endpoint in job.endpoints),
    )
    return Recorder(inner, file, began)


def _facts(job: Job, endpoint: Endpoint) -> EndpointFacts:
    from redline.timeline import EndpointFacts

    limits = endpoint.limits
    price = job.price_table().at(endpoint.label, job.prompting.model)
    rates = {kind: tuple(map(str, limits.rates(kind))) for kind in KINDS}
    return EndpointFacts(
        name=endpoint.label,
        weight=endpoint.weight,
        profile=limits.profile,
        slots=0 if limits.is_adaptive else limits.slots(),
        # Of picodollars for a token, a million are a dollar for a million tokens.
        input_price=None if price is None else price.input / 1e6,
        output_price=None if price is None else price.output / 1e6,
        **rates,
    )
