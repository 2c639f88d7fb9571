"""What follows the windows of a run, as they come."""

from __future__ import annotations

from redline.job.monitor.metrics import Family, families
from redline.job.show import View
from redline.timeline import Window, merged


class Monitor:
    """The windows of a run as one, and the metrics that come of it."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._whole = Window(begin_s=0.0, end_s=0.0)

    def note(self, window: Window) -> None:
        """A window of the run has ended."""
        self._whole = merged([self._whole, window])

    def families(self) -> list[Family]:
        """The metrics of the run now."""
        return families(self._view, self._whole)
