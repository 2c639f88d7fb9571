"""The prediction for a run before it began, which the runs of a job score."""

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
    """The rate of answers after a change of settings, by what was seen before it.

    change: in words. Rates in answers per second: before_per_s, as it was; likely_per_s, the
    median; low_per_s and high_per_s, between which it is in 19 of 20 cases. unknown: why there
    is no such interval; empty if there is one. What is unknown may still have a high_per_s.
    """

    change: str
    before_per_s: float
    low_per_s: float = 0.0
    likely_per_s: float = 0.0
    high_per_s: float = 0.0
    unknown: str = ""

    def holds(self, per_s: float) -> bool:
        """Whether it is what was predicted. What is unknown never holds."""
        return not self.unknown and self.low_per_s <= per_s <= self.high_per_s
