"""A whole run against limiters that people deploy: no rejection, and the limit used.

test_limits.py has every limiter, rate and jitter, on the backend alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import redline
from support.lateness import judge

SERVER = Path(__file__).parents[1] / "support" / "slowapi_server.py"
RATE, CALLS = 10, 35


@contextmanager
def slowapi(limit: str, strategy: str, jitter_ms: int) -> Iterator[str]:
    command = [sys.executable, str(SERVER), limit, strategy, str(jitter_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.stdout.close()


def counts(base_url: str) -> dict[str, int]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(base_url.removesuffix("/v1") + "/count", timeout=10) as reply:
        found: dict[str, int] = json.load(reply)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("jitter_ms", [20])
@pytest.mark.parametrize(
    ("strategy", "profile"),
    [("counter", "any"), ("moving", "moving")],
)
def test_no_call_is_rejected_and_the_limit_is_used(
    strategy: str, profile: str, jitter_ms: int
) -> None:
    # The guard that a run begins with, less the server's own jitter.
    judge(lambda _: check(strategy, profile, jitter_ms), late_s=0.03)


def check(strategy: str, profile: str, jitter_ms: int) -> None:
    with slowapi(f"{RATE}/second", strategy, jitter_ms) as base_url:
        counts(base_url)  # the server's first request is slow, which the guard need not cover
        limits = redline.Limits(requests=f"{RATE}/1s", profile=profile)
        report = redline.run(
            [{"n": number} for number in range(CALLS)],
            endpoint=redline.Endpoint(base_url=base_url, limits=limits),
            url="/chat",
            method="GET",
        )
        seen = counts(base_url)
    assert seen == {"admitted": CALLS, "refused": 0}
    assert report.succeeded == CALLS
    assert report.outcomes[0].output == "hello"
    # The last send's time by the design's formula; a limiter that wastes the limit takes far
    # longer, so the factor leaves room for a busy machine only.
    span_s = 1.0
    is_burst = profile in ("fixed", "moving")
    last_s = (CALLS - 1) // RATE * span_s if is_burst else (CALLS - 1) * span_s / RATE
    assert report.elapsed_s >= last_s - 0.01
    assert report.elapsed_s <= 1.5 * last_s + 3
