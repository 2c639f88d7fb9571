"""`redline bench` in a process of its own against `redline sim` in another: both logs agree."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from statistics import median, quantiles
from typing import Any

import pytest

from support.catching import assert_caught
from support.sim_process import SimProcess
from support.simulated import simulated

STALL_S = 5.0


def bench(*flags: str) -> dict[str, Any]:
    """The figures of one load."""
    command = [sys.executable, "-m", "redline", "bench", *flags, "--json", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["figures"]
    return found


def p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


def test_times_agree_with_the_servers_own_log_under_poisson_arrivals() -> None:
    with simulated("--latency", "0.3-0.9", "--per-token", "0.1") as sim:
        load = ("--poisson", "30", "--duration", "4s", "--max-tokens", "8", "--seed", "5")
        figures = bench(sim.base_url, "--model", "m", *load)
        log = sim.requests()
        gaps_s = sim.get("/sim/gaps?limit=100000")["gaps_s"]
    assert len(log) == figures["succeeded"] == figures["ttft"]["count"]
    assert len(gaps_s) == figures["inter_token"]["count"]
    ttfts_s = [one["first_token_s"] - one["arrival_s"] for one in log]
    # Half of the gaps are as long there as here, however busy the machine is.
    assert figures["inter_token"]["p50_s"] == pytest.approx(median(gaps_s), rel=0.02)
    # The others by as much as the client says it was late, if that is more.
    late_s = figures["client"]["late_s"] + figures["client"]["loop_lag_s"]
    for name, own, shown in (
        ("p50_s", median(ttfts_s), figures["ttft"]["p50_s"]),
        ("p99_s", p99(ttfts_s), figures["ttft"]["p99_s"]),
        ("gap p99", p99(gaps_s), figures["inter_token"]["p99_s"]),
    ):
        assert shown == pytest.approx(own, rel=0.05, abs=late_s), name


def test_a_stall_of_the_server_shows_in_the_p99_from_the_scheduled_time() -> None:
    """The server is stopped for 5 of 10 s. With at most 2 requests in flight, few meet it."""
    with SimProcess("--latency", "0.01") as sim:

        def stall() -> None:
            """Stops the server for 5 s once 40 requests are answered."""
            while sim.stats()["answered"] < 40:
                time.sleep(0.02)
            sim.stop()
            time.sleep(STALL_S)
            sim.go_on()

        stalling = threading.Thread(target=stall, daemon=True)
        stalling.start()
        load = ("--constant", "40", "--duration", "10s", "--max-tokens", "8", "-c", "2")
        figures = bench(sim.base_url, "--model", "m", *load)
        stalling.join()

    def shows_the_stall(latency: dict[str, float]) -> None:
        # Half of them were due while it was stopped: one in a hundred waited for nearly all of it.
        assert latency["p99_s"] > 0.9 * STALL_S

    # From the send, only those in flight have met it: fewer than one in a hundred.
    assert figures["succeeded"] > 200
    assert_caught(shows_the_stall, figures["latency"], figures["from_send"])
