"""Finds what holds back the next call of a run at one moment: a pure function of its state.

The rules in their order; the first that matches counts:

  rest     the run is ending: no other row is begun
  parked   every endpoint has asked to wait or cannot be reached; at least one has asked to wait
  down     no endpoint can be reached
  limit    no endpoint has room; at half or more of those that work, calls wait for their grant, or
           in the pool until it is near
  slots    there is another row, and no endpoint has room or the bound on all together is reached
  budget   a call waits for the budget; it could be sent with a larger one
  taker    a worker waits until its result is taken
  writer   workers wait for rows, which are not read since too much is not durable
  memory   workers wait for rows, which are not read since the rows at hand are too large
  input    workers wait for rows
  batch    rows are with the Batch API, and no call is in flight
  backoff  of the rows that are not on the wire, half or more wait to be retried
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

    loads: of the endpoints that are not out. queued: calls that wait for any of them.
    is_full_together: they have reached the bound on the calls of all of them.
    is_starved: workers wait for a row to be read; is_over: no more rows will be read; has_ready:
    some rows are read and not handed out. is_full: no rows are read for now; is_behind: because too
    much is not durable. is_ending: no other row is begun. handing: workers that wait until their
    result is taken. in_hand: rows without an outcome; in_flight, retrying: of them.
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
    """Returns what holds back the next call, by the table above."""
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
    """Returns how endpoints hold back the next call; None if one has room, or none is used."""
    # If calls wait, an endpoint with room has it only for a moment.
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
