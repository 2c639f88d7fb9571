"""Defines the metrics of a job: their names, labels and values.

Names and units follow Prometheus' rules: base units, and `_total` for metrics that only grow. Every
label has few values: the names of endpoints and of the model come from the settings, the kinds of
errors, tokens and rows from the code. Counters cover this process's run; `redline_job_rows` and
`redline_budget_used_ratio` cover all runs of the job.
https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Literal

import msgspec

from redline._version import __version__
from redline.calls.client import label_of
from redline.calls.cost import DOLLAR
from redline.job.show import View
from redline.observe import Cause, current, recent
from redline.timeline import Sketch, Window
from redline.waist import Attempts, Health

# Upper bounds of the buckets of a histogram. The last is the default timeout of an attempt.
BOUNDS_S = (
    0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0,
    30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0,
)  # fmt: skip
ENDPOINT_STATES = (*(state.value for state in Health), "parked")
Labels = Mapping[str, str]


class Histogram(msgspec.Struct, frozen=True):
    """A cumulative histogram of durations; above about 500 calls per second, an estimate.

    counts: the number of durations up to each bound of BOUNDS_S, then of all durations. sum_s: the
    sum of the durations in seconds, within 1 %.
    """

    counts: tuple[int, ...]
    sum_s: float


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One metric with its samples.

    name: without the suffix `_total` of a counter. about: the help text. samples: the values, each
    with its labels. unit: the unit in OpenTelemetry, empty if there is none; None for a metric that
    is not sent to OpenTelemetry.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    samples: list[tuple[Labels, float | Histogram]]
    unit: str | None = None


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run at one moment.

    whole: all windows of the run, merged into one. parts: the counts of attempts by endpoint.
    of_job: the label with the model.
    """

    view: View
    whole: Window
    parts: dict[str, Attempts]
    of_job: Labels

    @property
    def last(self) -> Window:
        windows = self.view.sampler.windows
        return windows[-1] if windows else self.whole


def families(view: View, whole: Window) -> list[Family]:
    """Returns the current metrics of a run, except those without samples.

    whole: all windows of the run, merged into one.
    """
    of_job = {"model": view.job.prompting.model or ""}
    seen = _Seen(view=view, whole=whole, parts=_parts(view), of_job=of_job)
    found = (family for part in _PARTS for family in part(seen))
    return [family for family in found if family.samples]


def _parts(view: View) -> dict[str, Attempts]:
    """Returns the counts of attempts, by the endpoint's label."""
    if view.tally.parts:
        return dict(view.tally.parts)
    job = view.job
    if job.call is not None:
        return {label_of(job.call): view.tally}
    return {job.endpoint.label if job.endpoint is not None else "": view.tally}


def _family(
    kind: Literal["counter", "gauge"],
    name: str,
    about: str,
    samples: Iterable[tuple[Labels, float]],
    unit: str | None = None,
) -> Family:
    return Family(name=name, kind=kind, about=about, samples=list(samples), unit=unit)


# Make a metric that only grows, and a metric of the current state.
counter, gauge = partial(_family, "counter"), partial(_family, "gauge")


def _kinds(of: Labels, values: Mapping[str, float]) -> list[tuple[Labels, float]]:
    return [({**of, "kind": kind}, value) for kind, value in values.items()]


def _about_calls(seen: _Seen) -> Iterator[Family]:
    named = [({"endpoint": name, **seen.of_job}, part) for name, part in seen.parts.items()]
    yield counter(
        "redline_requests",
        "Requests written, including retries.",
        [(labels, part.attempts) for labels, part in named],
        "{request}",
    )
    yield counter(
        "redline_retries",
        "Requests written again after a failed attempt.",
        [(labels, part.retries) for labels, part in named],
        "{request}",
    )
    yield counter(
        "redline_failovers",
        "Retries at a different endpoint from the failed attempt, which may have been billed too.",
        [(labels, part.failovers) for labels, part in named],
        "{request}",
    )
    yield counter(
        "redline_request_errors",
        "Failed attempts, by the kind of the error.",
        [
            ({**labels, "kind": kind}, count)
            for labels, part in named
            for kind, count in part.errors.items()
            if kind != "cancelled"
        ],
        "{request}",
    )
    yield counter(
        "redline_tokens",
        "Tokens that answers report, by direction.",
        [
            sample
            for labels, part in named
            for sample in _kinds(labels, {"input": part.input_tokens, "output": part.output_tokens})
        ],
        "{token}",
    )
    yield gauge(
        "redline_requests_running",
        "Requests in flight.",
        [(labels, part.in_flight) for labels, part in named],
        "{request}",
    )


def _about_load(seen: _Seen) -> Iterator[Family]:
    of_job, last = seen.of_job, seen.last
    yield gauge(
        "redline_requests_waiting",
        "Calls that wait for a rate limit: the mean of the last second.",
        [(of_job, last.waiting)],
        "{request}",
    )
    yield gauge(
        "redline_request_slots",
        "Maximum requests in flight, 0 if there is no bound.",
        [(of_job, last.slots)],
        "{request}",
    )
    yield gauge(
        "redline_rows_retrying",
        "Rows that wait for a retry.",
        [(of_job, seen.view.tally.retrying)],
        "{row}",
    )
    yield gauge(
        "redline_limit_used_ratio",
        "Share of each rate limit that is used in its window.",
        [({"limit": use.name}, use.used / use.count) for use in last.limits if use.count],
        "1",
    )
    yield gauge(
        "redline_parked_seconds",
        "Seconds until a request may be sent if each endpoint is down or has asked redline to "
        "wait, otherwise 0.",
        [(of_job, last.parked_s)],
        "s",
    )
    yield gauge(
        "redline_endpoint_state",
        "1 for an endpoint's current state, 0 for its others; only with several endpoints.",
        [
            ({"endpoint": one.name, "kind": state}, float(one.state == state))
            for one in last.endpoints
            for state in ENDPOINT_STATES
        ],
        "",
    )
    yield gauge(
        "redline_client_busy_ratio",
        "Share of the last second in which the event loop was busy.",
        [({}, last.busy)],
        "1",
    )
    yield gauge(
        "redline_client_lag_seconds",
        "The longest delay of the event loop in the last second.",
        [({}, last.lag_s)],
        "s",
    )


def _about_rows(seen: _Seen) -> Iterator[Family]:
    tally, counts = seen.view.tally, seen.view.counts()
    yield counter(
        "redline_rows",
        "Rows whose outcome this run has saved or, without an output file, delivered.",
        _kinds(seen.of_job, {"done": tally.succeeded, "failed": tally.failed}),
        "{row}",
    )
    whole = {
        "all": counts.rows,
        "done": counts.done,
        "failed": counts.failed,
        "left": counts.left,
        "untried": counts.untried,
    }
    yield gauge(
        "redline_job_rows",
        "Rows of the whole job, over all its runs.",
        _kinds({}, whole),
        "{row}",
    )
    yield counter(
        "redline_flawed_answers",
        "Rows done whose answer is truncated, empty, filtered or a refusal.",
        _kinds(seen.of_job, tally.flawed),
        "{row}",
    )
    if tally.cache is not None:
        use = tally.cache
        found = {"hit": use.hits, "shared": use.shared, "miss": use.misses, "passed": use.passed}
        yield counter(
            "redline_cache_lookups",
            "Rows by the result of their lookup in the answer cache.",
            _kinds({}, found),
            "{row}",
        )
    if tally.batches is not None:
        yield gauge(
            "redline_batch_rows",
            "Rows in open batches of the Batch API.",
            [({}, tally.batches.rows)],
            "{row}",
        )


def _about_cost(seen: _Seen) -> Iterator[Family]:
    spent = seen.view.bill.read()
    if spent.here is not None:
        yield counter(
            "redline_cost_usd",
            "Dollars that this run has spent, according to the known prices.",
            [(seen.of_job, spent.here / DOLLAR)],
            "{USD}",
        )
    used = {}
    for kind, value, of in (
        ("usd", spent.picodollars, spent.allowance.picodollars),
        ("tokens", spent.tokens, spent.allowance.tokens),
    ):
        if value is not None and of:
            used[kind] = value / of
    yield gauge(
        "redline_budget_used_ratio",
        "Share of the budget that all runs with a budget have spent.",
        _kinds({}, used),
        "1",
    )


def _about_times(seen: _Seen) -> Iterator[Family]:
    whole = seen.whole
    yield _histogram(
        "redline_request_duration_seconds",
        "From the write of a request to the end of its answer.",
        seen.of_job,
        whole.latency,
    )
    if whole.first_token.count:
        yield _histogram(
            "redline_first_token_seconds",
            "From the write of a request to the first token of a streamed answer.",
            seen.of_job,
            whole.first_token,
        )
    phases = msgspec.structs.asdict(whole.phases)
    yield counter(
        "redline_call_seconds",
        "Seconds spent in each phase, summed over calls.",
        _kinds({}, {name.removesuffix("_s"): value for name, value in phases.items()}),
        "s",
    )


def _about_run(seen: _Seen) -> Iterator[Family]:
    binding = current(recent(seen.view.sampler.windows))
    found = Cause.UNDETERMINED if binding is None else binding.cause
    yield gauge(
        "redline_binds",
        "1 for the cause that holds the job back, 0 for the other causes.",
        [({"cause": cause.value}, float(cause is found)) for cause in Cause],
        "",
    )
    firing = {alert.rule for alert in seen.view.alerts.firing}
    yield gauge(
        "redline_alert_firing",
        "1 for each rule whose alert fires, 0 for the other rules.",
        [({"rule": one.name}, float(one.name in firing)) for one in seen.view.job.alerts.rules],
        "",
    )
    yield gauge(
        "redline_start_time_seconds",
        "When the run began, in seconds since 1970.",
        [({}, seen.view.sampler.facts.at)],
    )
    yield gauge("redline_build_info", "1, with the version.", [({"version": __version__}, 1)])


_PARTS: tuple[Callable[[_Seen], Iterator[Family]], ...] = (
    _about_rows,
    _about_calls,
    _about_load,
    _about_cost,
    _about_times,
    _about_run,
)


def _histogram(name: str, about: str, labels: Labels, sketch: Sketch) -> Family:
    values = list(sketch.values_s())
    counts = [sum(count for value_s, count in values if value_s <= bound) for bound in BOUNDS_S]
    total_s = sum(value_s * count for value_s, count in values)
    found = Histogram((*counts, sketch.count), total_s)
    return Family(name=name, kind="histogram", about=about, samples=[(labels, found)])
