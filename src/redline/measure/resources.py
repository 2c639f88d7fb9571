"""Measures the resources that a load uses in its process, and how busy this machine's GPUs are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from importlib import import_module
from operator import sub
from typing import Any

from msgspec.structs import replace

from redline.clock import SYSTEM, Clock
from redline.measure.figures import ClientUse
from redline.timeline import Quantiles, Spread

_TICK_S = 0.05
_GPU_S = 0.5
# An event loop that is busy for this share of its time is assumed to delay calls: at 0.9, it is
# busy at nine of ten random moments.
_BUSY = 0.9
# The client's own delay matters if it is above this share of a typical latency and this duration.
_DELAY_SHARE, _LEAST_DELAY_S = 0.1, 0.01


class Watch:
    """Observes this process and the GPUs from `start` to `stop`, in the loop that starts it."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self._begun = self._ended = (0.0, 0.0, 0.0)
        self._clear()

    def _clear(self) -> None:
        self._lag, self.late = Spread(), Spread()
        self._gpu_sum, self._gpu_count = 0.0, 0

    def start(self) -> None:
        """Starts observing; a later call starts over, as at the end of the warm-up."""
        self._clear()
        self._begun = _used(self._clock)
        if not self._tasks:
            work = (self._watch_loop(), self._watch_gpus())
            self._tasks = [asyncio.create_task(one) for one in work]

    def stop(self) -> None:
        """Stops observing; may be called repeatedly."""
        if self._tasks:
            self._ended = _used(self._clock)
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def use(self, typical: Quantiles | None) -> ClientUse:
        """Returns what was measured between `start` and `stop`. typical: see `bottleneck`."""
        thread_s, process_s, wall_s = map(sub, self._ended, self._begun)
        use = ClientUse(
            cpu=thread_s / wall_s if wall_s > 0 else 0.0,
            process_cpu=process_s / wall_s if wall_s > 0 else 0.0,
            loop_lag_s=self._lag.quantile(0.99),
            late_s=self.late.quantile(0.99),
        )
        return replace(use, bottleneck=bottleneck(use, typical))

    @property
    def gpu_utilization(self) -> float | None:
        """The mean utilization over all GPUs and the time, 0 to 1; None without NVML or a GPU."""
        return self._gpu_sum / self._gpu_count if self._gpu_count else None

    async def _watch_loop(self) -> None:
        while True:
            due_s = self._clock.now_s() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._lag.add(max(0.0, self._clock.now_s() - due_s))

    async def _watch_gpus(self) -> None:
        # The driver's library is loaded and queried in threads, because both may take long.
        read = await asyncio.to_thread(gpu_reader)
        while read is not None:
            used = await asyncio.to_thread(read)
            if used is None:
                return
            self._gpu_sum, self._gpu_count = self._gpu_sum + used, self._gpu_count + 1
            await asyncio.sleep(_GPU_S)


def _used(clock: Clock) -> tuple[float, float, float]:
    return time.thread_time(), time.process_time(), clock.now_s()


def gpu_reader() -> Callable[[], float | None] | None:
    """Returns a function that reads the mean utilization of all GPUs, 0 to 1; None without GPUs.

    The utilization is NVML's utilization.gpu: the share of the driver's last sample period, which
    is 1/6 s to 1 s, in which any kernel was running (NVML API reference, nvmlUtilization_t). The
    function returns None if the GPUs can no longer be read.
    """
    try:
        # From the package nvidia-ml-py.
        nvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        each = [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return None

    def read() -> float | None:
        try:
            used = [nvml.nvmlDeviceGetUtilizationRates(one).gpu for one in each]
        except nvml.NVMLError:
            return None
        return float(sum(used) / len(used) / 100)

    return read if each else None


def bottleneck(use: ClientUse, typical: Quantiles | None) -> str:
    """Returns why the figures show this client's limits; "" if they show the target's.

    typical: quantiles of the time to first token, or of the latency if answers are not streamed.
    """
    if use.cpu >= _BUSY:
        return (
            f"its event loop took {use.cpu:.0%} of a core: share the load among several processes"
        )
    bar_s = _LEAST_DELAY_S
    if typical is not None:
        bar_s = max(bar_s, _DELAY_SHARE * typical.p50_s)
    for what, delay_s in (("its event loop was", use.loop_lag_s), ("calls were made", use.late_s)):
        if delay_s > bar_s:
            return (
                f"{what} up to {1000 * delay_s:.0f} ms late (p99), which the latencies include: "
                "keep other work off this machine, or lower the load"
            )
    return ""
