"""Finds what holds back the next call of a run at one moment: a pure function of the run's state.

The rules, in order; the first that matches counts:

  rest     the run is ending: no more rows begin
  parked   a row is in hand or ready, every endpoint is down or has asked redline to wait, and at
           least one has asked
  down     a row is in hand or ready, and every endpoint is down: out of reach, or failing
  limit    no endpoint has room; at half or more of the working endpoints, calls wait for their
           grant, or wait in the pool until the grant is near
  slots    a row waits or may follow, but no endpoint has room, or all endpoints together have
           reached their bound
  budget   a call waits for room in the budget; with a larger budget, it could be sent
  taker    a worker waits until its result is taken
  writer   workers wait for rows; none are read, because too many results are not durable yet
  memory   workers wait for rows; none are read, because the rows in hand are too large
  input    workers wait for rows
  batch    rows are with the Batch API, and no call is in flight
  backoff  of the rows that are not on the wire, half or more wait for their retry
  rest     no row is left
  client   none of these
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from redline.timeline import Holder
from redline.waist import Load


class Moment(msgspec.Struct, kw_only=True):
    """The state of a run at one moment.

    loads: the loads of the endpoints that are not out. queued: calls that wait in the pool, for any
    endpoint. is_full_together: all endpoints together have as many calls as they may have.
    is_starved: workers wait for a row to be read. is_over: no more rows will be read. has_ready:
    rows have been read that are not handed out yet. is_full: workers wait because reading is
    paused. is_behind: too many results are not durable yet. is_ending: no more rows begin.
    handing: workers that wait until their result is taken. in_hand: rows that have begun and have
    no outcome yet. in_flight: requests on the wire. retrying: rows that wait for a retry.
    """

    now_s: float
    loads: Sequence[Load] = ()
    queued: int = 0
    is_full_together: bool = False
    is_starved: bool = False
    is_over: bool = False
    has_ready: bool = False
    is_full: bool = False
    is_behind: bool = False
    is_ending: bool = False
    waits_for_budget: bool = False
    has_batches: bool = False
    handing: int = 0
    in_hand: int = 0
    in_flight: int = 0
    retrying: int = 0


def holder_of(moment: Moment) -> Holder:
    """Returns what holds back the next call, according to the module's table."""
    if moment.is_ending:
        return "rest"
    held = _at_endpoints(moment)
    if held is not None:
        return held
    if moment.waits_for_budget:
        return "budget"
    if moment.handing:
        return "taker"
    if moment.is_starved:
        if moment.is_full:
            return "writer" if moment.is_behind else "memory"
        return "input"
    if moment.has_batches and not moment.in_flight:
        return "batch"
    if moment.retrying and 2 * moment.retrying >= moment.in_hand - moment.in_flight:
        return "backoff"
    return "rest" if moment.is_over and not moment.has_ready else "client"


def _at_endpoints(moment: Moment) -> Holder | None:
    """Returns how the endpoints hold back the next call; None if they do not."""
    # While calls wait in the pool, an endpoint that has room loses it again within a moment.
    is_wanted = moment.queued > 0 and not moment.is_full_together
    found = [_holder_at(load, moment.now_s, is_wanted=is_wanted) for load in moment.loads]
    if not found or None in found:
        # An endpoint has room, but the bound on all of them together may be reached.
        has_row = moment.has_ready or moment.queued or not moment.is_over
        return "slots" if moment.is_full_together and has_row else None
    working = [held for held in found if held not in ("parked", "down")]
    if not working:
        held: Holder = "parked" if "parked" in found else "down"
        return held if moment.in_hand or moment.has_ready else None
    if 2 * working.count("limit") >= len(working):
        return "limit"
    queued = moment.queued or any(load.queued for load in moment.loads)
    if moment.has_ready or queued or not moment.is_over:
        return "slots"
    return None


def _holder_at(load: Load, now_s: float, *, is_wanted: bool) -> Holder | None:
    if load.is_down:
        return "down"
    if load.parked_until_s > now_s:
        return "parked"
    if load.waiting > load.queued:
        return "limit"
    if load.is_full or not is_wanted:
        return "slots" if load.is_full else None
    return "limit" if load.opens_s > now_s else "slots"
