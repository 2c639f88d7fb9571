"""Defines the prediction for a run, which is made before the run and scored after it."""

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

    change: describes the change in words. Rates in answers per second: before_per_s, as observed;
    likely_per_s, the predicted median; low_per_s and high_per_s, the interval that should contain
    the rate in 19 of 20 cases. unknown: why no interval can be predicted; "" if there is one. An
    unknown rate may still have a high_per_s, as an upper bound.
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
