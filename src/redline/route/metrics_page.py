"""Reads the load that a model server reports on /metrics, in Prometheus' text format.

server    running                     waiting                     use of its cache
vLLM      vllm:num_requests_running   vllm:num_requests_waiting   vllm:kv_cache_usage_perc, before
                                                                  0.9 vllm:gpu_cache_usage_perc
SGLang    sglang:num_running_reqs     sglang:num_queue_reqs       sglang:token_usage
redline   redline_requests_running    redline_requests_waiting    redline_cache_used_ratio

`redline engine` uses vLLM's names, and `redline sim` those in the last row. Only these lines are
parsed, so a page of megabytes takes a few milliseconds; a parser of the whole format, such as
prometheus_client's, would parse every line.
Format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import msgspec

# A server with many engines or models has one line for each of them.
MOST_LINES = 1_000
_MOST_CALLS = 1_000_000
_SERVERS = (
    (b"vllm:num_requests_running", b"vllm:num_requests_waiting",
     (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")),
    (b"sglang:num_running_reqs", b"sglang:num_queue_reqs", (b"sglang:token_usage",)),
    (b"redline_requests_running", b"redline_requests_waiting", (b"redline_cache_used_ratio",)),
)  # fmt: skip


class ServerFigures(msgspec.Struct, frozen=True):
    """The load that a model server reports.

    running, waiting: calls of all its clients, summed over its models and engines. cache_used: the
    used share of its cache, 0 to 1, the mean over models and engines; None if unknown.
    """

    running: int
    waiting: int
    cache_used: float | None = None


def read_metrics(page: bytes) -> ServerFigures | None:
    """Returns the server's figures; None if the page has no plausible ones."""
    text = b"\n" + page
    for running_name, waiting_name, cache_names in _SERVERS:
        running, waiting = (_calls(text, name) for name in (running_name, waiting_name))
        if running is None or waiting is None:
            continue
        uses = next(filter(None, (list(_values(text, name)) for name in cache_names)), [])
        is_known = bool(uses) and all(0 <= value <= 1 for value in uses)
        return ServerFigures(running, waiting, sum(uses) / len(uses) if is_known else None)
    return None


def _calls(text: bytes, name: bytes) -> int | None:
    """Returns the sum of a metric that counts calls, over its lines; None if not plausible."""
    found = list(_values(text, name))
    total = sum(found)
    is_count = bool(found) and min(found) >= 0 and total <= _MOST_CALLS
    return int(total) if is_count else None


def _values(text: bytes, name: bytes) -> Iterator[float]:
    """Yields the values of the metric's first MOST_LINES lines; NaN for an invalid one."""
    return map(_number, islice(_lines(text, name), MOST_LINES))


def _lines(text: bytes, name: bytes) -> Iterator[bytes]:
    """Yields the metric's lines, each without the part before its value."""
    at, start = 0, b"\n" + name
    while (at := text.find(start, at)) >= 0:
        at += len(start)
        after = text[at : at + 1]
        if after not in (b"{", b" ", b"\t"):
            # Another metric, whose name starts with this one's.
            continue
        end = text.find(b"\n", at)
        line = text[at : end if end >= 0 else len(text)]
        # A value contains no brace; a label may.
        yield line[line.rfind(b"}") + 1 :] if after == b"{" else line


def _number(line: bytes) -> float:
    """Returns the value at the start of the text, which a timestamp may follow; NaN if none."""
    try:
        return float(line.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return math.nan
