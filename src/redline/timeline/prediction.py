"""The prediction for a run, made before it began and scored afterwards."""

from __future__ import annotations

import msgspec


class Prediction(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag="prediction",
    tag_field="kind",
):
    """The rate of answers after a change of settings, predicted from earlier observations.

    change: in words. Rates in answers per second: before_per_s, the observed rate; likely_per_s,
    the median; low_per_s and high_per_s, the interval that contains the rate in 19 of 20 cases.
    unknown: why there is no such interval; empty if there is one. An unknown rate may still have a
    high_per_s.
    """

    change: str
    before_per_s: float
    low_per_s: float = 0.0
    likely_per_s: float = 0.0
    high_per_s: float = 0.0
    unknown: str = ""

    def holds(self, per_s: float) -> bool:
        """Whether the measured rate is within the interval; False if the prediction is unknown."""
        return not self.unknown and self.low_per_s <= per_s <= self.high_per_s
