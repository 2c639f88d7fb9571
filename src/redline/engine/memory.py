"""How much memory a device can still give."""

from __future__ import annotations

from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int | None:
    """Bytes that can be allocated on `device` without swapping; None if the system does not say.

    On a CPU the least of MemAvailable and of what the control group has left.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [bytes_left for bytes_left in (_of_machine(), _of_group()) if bytes_left is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        lines = _MEMINFO.read_text("ascii").splitlines()
    except OSError:
        return None
    kib = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kib[0]) * 1024 if kib else None


def _of_group() -> int | None:
    """What control group v2 allows beyond what is used; its page cache can be reclaimed."""
    try:
        limit = (_CGROUP / "memory.max").read_text("ascii").strip()
        used = int((_CGROUP / "memory.current").read_text("ascii"))
        counts = dict(
            line.split() for line in (_CGROUP / "memory.stat").read_text("ascii").splitlines()
        )
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - used + int(counts.get("inactive_file", 0)))
