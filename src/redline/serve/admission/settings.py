"""Defines priority classes: the slots that each reserves, and how many of its calls may wait."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from redline.errors import ConfigError


class ClassSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One priority class.

    name: used in requests and settings. priority: classes with lower numbers go first. reserved:
    the share, at least 0 and below 1, of slots that lower classes may not use; it is a share of the
    slots that this class and higher ones leave unused on average, rounded to whole slots.
    most_waiting: the maximum number of waiting calls of the class. most_waiting_each: the same for
    one tenant; 0 for a quarter of `most_waiting`. longest_wait_s: a call that would wait longer is
    refused. Raises ConfigError for a value out of its range.
    """

    name: str
    priority: int
    reserved: float = 0.0
    most_waiting: int = 1000
    most_waiting_each: int = 0
    longest_wait_s: float = 60.0

    def __post_init__(self) -> None:
        where = f"class {self.name}"
        if not self.name:
            raise ConfigError("a class needs a name")
        if not 0 <= self.reserved < 1:
            raise ConfigError(
                f"reserved must be 0 or more and below 1, not {self.reserved:g}",
                where=where,
                hint="0.1 reserves a tenth of the slots that this class and higher ones leave "
                "unused on average: lower classes cannot use them",
            )
        if self.most_waiting < 0 or self.most_waiting_each < 0:
            raise ConfigError("most_waiting and most_waiting_each must be 0 or more", where=where)
        if not self.longest_wait_s >= 0:
            raise ConfigError(
                f"the longest wait must be 0 s or more, not {self.longest_wait_s:g} s", where=where
            )

    @property
    def of_a_tenant(self) -> int:
        """The maximum number of waiting calls of one tenant."""
        return self.most_waiting_each or -(-self.most_waiting // 4)


# With 15 % reserved for `high`, the lower classes together still get at least 80 % of the slots
# that `high` leaves.
CLASSES = (
    ClassSettings(name="high", priority=0, reserved=0.15, longest_wait_s=30.0),
    ClassSettings(name="normal", priority=10, reserved=0.10, longest_wait_s=60.0),
    ClassSettings(name="low", priority=20, most_waiting=10_000, longest_wait_s=3600.0),
)


def in_order(classes: Sequence[ClassSettings]) -> list[ClassSettings]:
    """Sorts the classes, highest first.

    Raises ConfigError if there is none, or if two share a name or a priority.
    """
    if not classes:
        raise ConfigError("admission needs a class")
    for what in ("name", "priority"):
        values = [getattr(one, what) for one in classes]
        for value in values:
            if values.count(value) > 1:
                raise ConfigError(
                    f"two classes have the {what} {value}", hint=f"give each its own {what}"
                )
    return sorted(classes, key=lambda one: one.priority)
