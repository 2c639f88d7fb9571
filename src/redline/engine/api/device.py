"""Reads the utilization of an engine's GPU."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch


def gpu_use() -> float | None:
    """Returns the share of the driver's last sample in which the current GPU ran a kernel, 0 to 1.

    This is NVML's utilization.gpu, whose samples cover 1/6 to 1 s. Returns None without CUDA or the
    package nvidia-ml-py, or if the driver does not report it, as for a part of a GPU (MIG). The
    driver may take a long time to reply, so do not call this in the event loop.
    """
    if not torch.cuda.is_available():
        return None
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        return torch.cuda.utilization() / 100
    except (nvml.NVMLError, RuntimeError):
        return None
