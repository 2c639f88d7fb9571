"""Where the time of rows went."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from redline.timeline import Window, merged_phases


def time_by_phase(windows: Sequence[Window]) -> dict[str, float]:
    """Seconds that the rows of a run spent in each phase, all rows together, longest first.

    A phase has the name of its field in `Phases`, without its unit. They are those of the calls
    that have ended. The wait for the disk comes after a row is out of hand.
    """
    phases = msgspec.structs.asdict(merged_phases([window.phases for window in windows]))
    found = {name.removesuffix("_s"): seconds for name, seconds in phases.items() if seconds}
    return dict(sorted(found.items(), key=lambda item: -item[1]))
