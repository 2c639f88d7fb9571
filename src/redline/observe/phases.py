"""Where the time of rows went."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from redline.timeline import Window, merged_phases

UNATTRIBUTED = "unattributed"


def time_by_phase(windows: Sequence[Window]) -> dict[str, float]:
    """Seconds that the rows of a run spent in each phase, all rows together, longest first.

    A phase has the name of its field in `Phases`, without its unit. What no mark accounts for is
    `unattributed`: the rows in hand, at each moment, add up to the time of all rows (Little's law).
    It includes the client's own work and the job's functions, and while a run goes on also the
    calls that have not ended. The wait for the disk comes after a row is out of hand.
    """
    phases = msgspec.structs.asdict(merged_phases([window.phases for window in windows]))
    durable_s = phases.pop("durable_s", 0.0)
    found = {name.removesuffix("_s"): seconds for name, seconds in phases.items() if seconds}
    in_hand_s = sum(window.in_hand * window.span_s for window in windows if window.samples)
    found[UNATTRIBUTED] = max(0.0, in_hand_s - sum(found.values()))
    if durable_s:
        found["durable"] = durable_s
    return dict(sorted(found.items(), key=lambda item: -item[1]))
