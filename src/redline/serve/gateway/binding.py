"""Decides from a gateway's figures what holds its calls back: the first cause that applies.

In this table, an endpoint is one of a pool in which calls wait, or any endpoint if no call waits.
If a function answers instead of endpoints, the cause is always `nothing`.

cause        when
failing      every endpoint is degraded; calls still go to some of them, and some are answered
down         no endpoint works
gateway      the gateway's process is busy for more than BUSY of the time
nothing      no call waits, and an endpoint has room within a second
parked       every working endpoint has asked the gateway to wait
concurrency  as many calls are in flight as -c allows, or all but those kept free
limit        the next call waits for a rate limit
warming      every working endpoint is warming up, with few calls at once until it has answered some
endpoints    no endpoint takes another call: all its slots are taken, or it is warming up
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from redline.process import counted, duration
from redline.route import PoolMember
from redline.serve.dashboard import Binding
from redline.waist import Health, Load

BUSY = 0.9
# Calls that would wait longer may be refused at once; then none waits, though no endpoint has room.
_SOON_S = 1.0
# The end of `Load.binds` if slots hold the next call back.
_SLOTS = " in flight"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a gateway in the last second.

    They cover the pools in which calls wait; all pools, if no call waits.

    loads: one per pool. most: the bound of -c, if it keeps calls of a pool waiting; otherwise None.
    states: one per endpoint. working: the loads of endpoints that are ready or warming. warming:
    the number of warming endpoints that take no other call now. answering: the number of degraded
    endpoints that still get calls and have answered some of them. waiting: the number of waiting
    calls. answers_per_s: mean over the last seconds. busy: the share of time, 0 to 1, in which the
    event loop's thread used the CPU. now_s: monotonic seconds.
    """

    loads: Sequence[Load]
    most: int | None
    states: Sequence[Health]
    working: Sequence[Load]
    waiting: int
    answers_per_s: float
    busy: float
    now_s: float
    warming: int = 0
    answering: int = 0


def binding_of(facts: Facts) -> Binding:
    """Returns what holds waiting calls back, and what would help."""
    if not facts.loads:
        waits = counted(facts.waiting, "item waits", "items wait")
        sentence = f"A function answers: there is no endpoint. {waits} for a batch."
        return Binding(cause="nothing", sentence=sentence)
    able = " with the models of the waiting calls" if facts.waiting else ""
    if not facts.working and facts.answering:
        return Binding(
            cause="failing",
            sentence=f"Every endpoint{able} is degraded. Calls still go to {facts.answering} of "
            f"{len(facts.states)}, and many of them fail. {_waiting(facts)}",
            advice="Check the reasons below, and the latest failed calls.",
        )
    if not facts.working:
        states = ", ".join(sorted({one.value for one in facts.states})) or "none exists"
        return Binding(
            cause="down",
            sentence=f"No endpoint{able} works: {states}. {_waiting(facts)}",
            advice="Check the reasons below; calls continue as soon as one endpoint answers.",
        )
    if facts.busy > BUSY:
        return Binding(
            cause="gateway",
            sentence=f"The gateway's own process is busy {facts.busy:.0%} of the time.",
            advice="Increase --workers by one: each process uses one core.",
        )
    if not facts.waiting and min(one.room_s for one in facts.working) < _SOON_S:
        return Binding(cause="nothing", sentence="Nothing: every call starts within a second.")
    until_s = min(one.parked_until_s for one in facts.working)
    if until_s > facts.now_s:
        return Binding(
            cause="parked",
            sentence=f"Every working endpoint{able} has asked the gateway to wait; the first is "
            f"available again in {duration(until_s - facts.now_s)}. {_waiting(facts)}",
            advice="Another endpoint or key would take these calls now.",
        )
    return _full(facts)


def _full(facts: Facts) -> Binding:
    """Returns the binding cause when the endpoints work but have no room."""
    working = len(facts.working)
    more = facts.answers_per_s / working
    gain = f"roughly {more:,.1f} answers/s" if more else "as much again"
    if facts.most is not None:
        return Binding(
            cause="concurrency",
            sentence=f"No slot is free: -c allows {counted(facts.most, 'call')} in flight. "
            f"{_waiting(facts)}",
            advice="Raise -c if the endpoints are not saturated: watch whether latency rises.",
        )
    # Endpoints that are parked or do not work are not held back by a limit.
    held = [one for one in facts.working if one.binds and one.parked_until_s <= facts.now_s]
    binds = min(held, key=lambda one: one.room_s).binds if held else ""
    if binds and not binds.endswith(_SLOTS):
        return Binding(
            cause="limit",
            sentence=f"A rate limit holds back the next call: {binds}. {_waiting(facts)}",
            advice=f"One more key or endpoint with the same limit would add {gain}.",
        )
    if facts.warming:
        return _warming(facts, gain)
    is_taken = all(one.is_full for one in facts.working)
    taken = f"Every slot of {counted(working, 'endpoint')} is taken."
    none = f"{counted(working, 'endpoint takes', 'endpoints take')} no other call at the moment."
    return Binding(
        cause="endpoints",
        sentence=f"{taken if is_taken else none} {_waiting(facts)}",
        advice=f"One more endpoint like these would add {gain}.",
    )


def _warming(facts: Facts, gain: str) -> Binding:
    """Returns the binding cause when warming endpoints take no other call yet."""
    warming, others = facts.warming, len(facts.working) - facts.warming
    warms = counted(warming, "endpoint warms", "endpoints warm")
    sentence = f"{warms} up, with few calls at once until it has answered some."
    if warming > 1:
        sentence = f"{warms} up, with few calls at once until they have answered some."
    if others:
        sentence += (
            f" {counted(others, 'other endpoint takes', 'other endpoints take')} no call either."
        )
    return Binding(
        cause="endpoints" if others else "warming",
        sentence=f"{sentence} {_waiting(facts)}",
        advice=f"One more endpoint like these would add {gain}."
        if others
        else "No change is needed: an endpoint takes more calls once it has answered some.",
    )


def _waiting(facts: Facts) -> str:
    """Returns a sentence: how many calls wait, and how long they take at the present rate."""
    if not facts.waiting:
        return "No call waits."
    waits = counted(facts.waiting, "call waits", "calls wait")
    if not facts.answers_per_s:
        return f"{waits}."
    return f"{waits}, {duration(facts.waiting / facts.answers_per_s)} of work at the present rate."


def state_of(member: PoolMember, load: Load, now_s: float) -> tuple[str, str]:
    """Returns the state of an endpoint, and the reason, which is empty if there is none."""
    health = member.health(now_s, load)
    if health in (Health.READY, Health.WARMING) and load.parked_until_s > now_s:
        return (
            "parked",
            f"it asked the gateway to wait for another {load.parked_until_s - now_s:.0f} s",
        )
    if member.error is not None:
        return health.value, member.error.what
    if health in (Health.DEGRADED, Health.GONE):
        return health.value, load.binds or member.failure
    return health.value, ""
