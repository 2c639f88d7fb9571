"""What a run would do: rows, tokens, and the time that its limits alone demand."""

from __future__ import annotations

from typing import Any

import msgspec

from redline.calls import Request, TokenEstimator
from redline.errors import ConfigError, Rejected
from redline.limits import Limits
from redline.run.settings import Job
from redline.run.source import AsyncRows, open_source
from redline.run.template import Renderer


class Plan(msgspec.Struct, kw_only=True):
    """bad_rows: would fail before anything is sent. tokens: estimated, input and output.

    limit_s: seconds until the last row may be sent; 0 where nothing limits it. bound: the limit
    that decides it. first_request: of the first good row.
    """

    rows: int = 0
    bad_rows: int = 0
    first_problem: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    limit_s: float = 0.0
    bound: str | None = None
    first_request: dict[str, Any] | None = None


def plan(job: Job) -> Plan:
    """Reads the whole input and sends nothing. Blocks."""
    source = open_source(job.rows)
    if isinstance(source, AsyncRows):
        raise ConfigError("an async iterable cannot be planned", hint="give a file")
    renderer, estimator, made = Renderer(job.prompting), TokenEstimator(), Plan()
    try:
        for batch in source.batches():
            for row in batch:
                if job.limit is not None and row.number > job.limit:
                    break
                made.rows += 1
                try:
                    if row.data is None:
                        raise Rejected(f"the row cannot be read: {row.problem}")
                    request = renderer.request(row.data)
                except Rejected as error:
                    made.bad_rows += 1
                    made.first_problem = made.first_problem or (
                        f"{source.name}:{row.line}: {error.what}"
                    )
                    continue
                cost = estimator.estimate(request)
                made.input_tokens += cost.input_tokens
                made.output_tokens += cost.output_tokens
                made.first_request = made.first_request or _shown(request)
    finally:
        source.close()
    limits = job.endpoint.limits if job.endpoint is not None else job.limits
    made.limit_s, made.bound = _time(made, limits)
    return made


def _shown(request: Request) -> dict[str, Any]:
    return {"method": request.method, "url": request.url, "body": request.body}


def _time(made: Plan, limits: Limits) -> tuple[float, str | None]:
    """The longest of the limits' own times, by the last-send formulas of docs/architecture.md."""
    sent = made.rows - made.bad_rows
    tokens = made.input_tokens + made.output_tokens
    times: list[tuple[float, str | None]] = [(0.0, None)]
    for rate in limits.request_rates():
        span_s = rate.window_s + limits.guard_s
        if limits.profile in ("fixed", "moving"):
            times.append((max(0, sent - 1) // rate.count * span_s, f"{rate} requests"))
        else:
            times.append((max(0, sent - 1) * span_s / rate.count, f"{rate} requests"))
    for rate in limits.token_rates():
        span_s = rate.window_s + limits.guard_s
        last = tokens / max(1, sent)
        times.append((max(0.0, tokens - last) * span_s / rate.count, f"{rate} tokens"))
    return max(times, key=lambda pair: pair[0])
