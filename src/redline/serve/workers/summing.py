"""Combines the figures of several workers into those of one gateway."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import chain
from math import inf
from operator import attrgetter
from typing import TypeVar

from msgspec.structs import replace

from redline.job.monitor import Family, Histogram
from redline.serve.dashboard import (
    ClassView,
    EndpointView,
    Event,
    Second,
    Snapshot,
    TenantView,
)

V = TypeVar("V", ClassView, EndpointView, TenantView)

# Fields whose highest value applies to the whole gateway; all other numbers are added. Limits of
# tenants are shared, so each worker knows the calls and the spending of a tenant in all workers.
_HIGHEST_OF: dict[type, set[str]] = {
    ClassView: {"oldest_s"},
    EndpointView: {"slots"},
    TenantView: {"running", "spent_usd"},
}
# The numbers of a snapshot that are added.
_ADDED = ("answers_per_s", "tokens_per_s", "running", "waiting")
_KEPT_EVENTS = 50
# Workers notice the same change at most this far apart.
_SAME_S = 5.0
# Each worker samples its seconds at its own times, slightly more than a second apart.
_NEAR_S = 1.5


def added(parts: Iterable[Sequence[Family]]) -> list[Family]:
    """Returns the metrics of several workers, added sample by sample."""
    found: dict[str, Family] = {}
    sums: dict[str, dict[tuple[tuple[str, str], ...], float | Histogram]] = {}
    for families in parts:
        for family in families:
            found.setdefault(family.name, family)
            samples = sums.setdefault(family.name, {})
            for labels, value in family.samples:
                key = tuple(sorted(labels.items()))
                before = samples.get(key)
                samples[key] = value if before is None else _sum(before, value)
    return [
        replace(family, samples=[(dict(key), value) for key, value in sums[name].items()])
        for name, family in found.items()
    ]


def _sum(one: float | Histogram, other: float | Histogram) -> float | Histogram:
    if isinstance(one, Histogram):
        assert isinstance(other, Histogram)
        return Histogram(
            tuple(map(sum, zip(one.counts, other.counts, strict=True))), one.sum_s + other.sum_s
        )
    assert not isinstance(other, Histogram)
    return one + other


def together(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Returns the first snapshot with the figures of the others added, except latency quantiles."""
    own = snapshots[0]
    bound = max(snapshots, key=lambda one: (one.binding.cause != "nothing", one.waiting))
    return replace(
        own,
        binding=bound.binding,
        up_s=max(one.up_s for one in snapshots),
        **{name: sum(getattr(one, name) for one in snapshots) for name in _ADDED},
        classes=joined_classes(one.classes for one in snapshots),
        endpoints=_joined([one.endpoints for one in snapshots], _endpoint),
        tenants=_joined([one.tenants for one in snapshots], _summed),
        batches=[batch for one in snapshots for batch in one.batches],
        changes=_changes(snapshots),
        faults=_latest([one.faults for one in snapshots]),
        history=_history(snapshots),
    )


def joined_classes(parts: Iterable[Sequence[ClassView]]) -> list[ClassView]:
    """Returns the classes, summed over the parts."""
    return _joined(parts, _summed)


def _joined(parts: Iterable[Sequence[V]], join: Callable[[V, V], V]) -> list[V]:
    """Returns the views in all parts, with views of the same name joined."""
    found: dict[str, V] = {}
    for one in chain.from_iterable(parts):
        before = found.get(one.name)
        found[one.name] = one if before is None else join(before, one)
    return list(found.values())


def _endpoint(one: EndpointView, other: EndpointView) -> EndpointView:
    """Adds two views of an endpoint as `_summed` does; latency_s is the mean of those above 0.

    The state is that of the first view with a reason, if any has one.
    """
    if other.reason and not one.reason:
        one, other = other, one
    latencies = [each.latency_s for each in (one, other) if each.latency_s]
    return replace(
        _summed(one, other), latency_s=sum(latencies) / len(latencies) if latencies else 0.0
    )


def _summed(one: V, other: V) -> V:
    """Returns the first view; each number is the sum of both, or the higher if in _HIGHEST_OF."""
    highest, sums = _HIGHEST_OF[type(one)], {}
    for name in one.__struct_fields__:
        values = (getattr(one, name), getattr(other, name))
        numbers = [value for value in values if isinstance(value, int | float)]
        if numbers:
            sums[name] = max(numbers) if name in highest else sum(numbers)
    return replace(one, **sums)


def _changes(snapshots: Sequence[Snapshot]) -> list[Event]:
    """Returns the latest changes; of one that several workers noticed, only the first event."""
    found: list[Event] = []
    first: dict[str, tuple[float, int]] = {}
    noticed = ((one, number) for number, each in enumerate(snapshots) for one in each.changes)
    for event, number in sorted(noticed, key=lambda pair: pair[0].at_s):
        at_s, by = first.get(event.what, (-inf, number))
        if by == number or event.at_s > at_s + _SAME_S:
            first[event.what] = event.at_s, number
            found.append(event)
    return found[-_KEPT_EVENTS:]


def _latest(parts: Iterable[Sequence[Event]]) -> list[Event]:
    return sorted(chain.from_iterable(parts), key=attrgetter("at_s"))[-_KEPT_EVENTS:]


def _history(snapshots: Sequence[Snapshot]) -> list[Second]:
    """Returns the first snapshot's seconds, each with the nearest second of the others added."""
    own, *others = (one.history for one in snapshots)
    return [reduce(_with_nearest, others, second) for second in own]


def _with_nearest(second: Second, others: Sequence[Second]) -> Second:
    at = bisect_left(others, second.at_s, key=attrgetter("at_s"))
    beside = others[max(0, at - 1) : at + 1]
    near = [one for one in beside if abs(one.at_s - second.at_s) <= _NEAR_S]
    if not near:
        return second
    other = min(near, key=lambda one: abs(one.at_s - second.at_s))
    return Second(
        second.at_s,
        second.answers + other.answers,
        second.tokens + other.tokens,
        second.running + other.running,
        second.waiting + other.waiting,
    )
