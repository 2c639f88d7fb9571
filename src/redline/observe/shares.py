"""Summarizes what bound a whole run, and for what share of the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from redline.observe.causes import Binding, Cause

# A cause counts as uninterrupted if another one interrupts it for fewer seconds than this.
_BRIDGED_S = 3.0


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """How long one constraint bound a run.

    share: the share of the run's time in which this constraint bound, 0 to 1. evidence: the
    evidence of the longest window in which it bound.
    """

    cause: Cause
    what: str
    share: float
    evidence: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What bound a whole run.

    shares: largest first; empty without windows, otherwise they add up to 1. sentence: describes
    the largest share.
    """

    shares: tuple[Share, ...]
    sentence: str


def summary_of(found: Sequence[Binding]) -> Summary:
    """Returns each constraint's share of the time, from the bindings of one or several runs."""
    total_s = sum(one.span_s for one in found) or 1.0
    alike = defaultdict[tuple[Cause, str], list[Binding]](list)
    for one in found:
        alike[one.cause, one.what].append(one)
    shares = [
        Share(
            cause=cause,
            what=what,
            share=sum(one.span_s for one in group) / total_s,
            evidence=max(group, key=lambda one: one.span_s).evidence,
        )
        for (cause, what), group in alike.items()
    ]
    shares.sort(key=lambda one: -one.share)
    return Summary(shares=tuple(shares), sentence=_sentence(shares))


def stretches(found: Sequence[Binding]) -> list[Binding]:
    """Merges neighbours with the same constraint, and drops short interruptions by another one."""
    groups: list[Binding] = []
    for one in found:
        is_bridged = len(groups) > 1 and groups[-2].is_same(one)
        if is_bridged and groups[-1].span_s < _BRIDGED_S:
            groups.pop()
        if groups and groups[-1].is_same(one):
            groups[-1] = msgspec.structs.replace(one, begin_s=groups[-1].begin_s)
        else:
            groups.append(one)
    return groups


def _sentence(shares: Sequence[Share]) -> str:
    if not shares:
        return "nothing was recorded"
    first = shares[0]
    what = f"bound by {first.what}{',' if ', ' in first.what else ''}"
    if first.cause is Cause.UNDETERMINED:
        what = first.what
    return f"{what} for {100 * first.share:.0f} % of the time"
