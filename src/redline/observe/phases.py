"""The time that rows spent in each phase."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from redline.timeline import Window, merged_phases


def time_by_phase(windows: Sequence[Window]) -> dict[str, float]:
    """Seconds that the rows of a run spent in each phase, all rows together, longest first.

    A phase has the name of its field in `Phases`, without the unit. Only calls that have ended
    count. The wait for the disk comes after a row has its outcome.
    """
    phases = msgspec.structs.asdict(merged_phases([window.phases for window in windows]))
    found = {name.removesuffix("_s"): seconds for name, seconds in phases.items() if seconds}
    return dict(sorted(found.items(), key=lambda item: -item[1]))
