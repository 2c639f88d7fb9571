"""How long calls spent in each phase, from their start and end and the marks of their attempts.

The time from the begin of a call to the first mark of its first attempt is the client's own, and so
is that from the end of its last attempt to its outcome.

An attempt has a mark for what it waited for, and none for what was available at once:

  mark         phase until then
  queued
  eligible     queue
  slot         slot
  ahead        grant: few get ready for their grants, the others wait behind them
  connected    connect
  granted      grant
  sent         send
  first byte   first byte
  first token  first token, of a stream
  complete     answer

The time between two marks belongs to the phase of the later one. So the phases of an attempt add up
to its whole time, and back-off is the time between two attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from redline.timeline.window import Phases
from redline.waist import MOST_TRIED, Attempt

# An ended call: when its row was taken, when it got its outcome, and its attempts.
Ended = tuple[float, float, Sequence[Attempt]]


def phases_of(ended: Iterable[Ended]) -> Phases:
    """The sums of all phases over these calls."""
    sums = dict.fromkeys(Phases.__struct_fields__, 0.0)
    for begun_s, ended_s, tried in ended:
        # A call that has kept the maximum number of attempts may have had earlier ones.
        before, at_s = "client_s" if len(tried) < MOST_TRIED else "unattributed_s", begun_s
        for attempt in tried:
            at_s = _add(sums, attempt, before, at_s)
            before = "backoff_s"
        sums["client_s"] += ended_s - at_s
    return Phases(**{name: max(0.0, spent_s) for name, spent_s in sums.items()})


def _add(sums: dict[str, float], attempt: Attempt, before: str, at_s: float) -> float:
    """Adds the phases of an attempt; `before` is that up to its first mark. Returns its end.

    at_s: when that phase began. An attempt without a write has failed while it waited for the next
    step. Written out, since a loop over the marks takes three times as long.
    """
    sent_s, complete_s = attempt.sent_s, attempt.complete_s
    if (mark_s := attempt.queued_s) is not None:
        sums[before] += mark_s - at_s
        before, at_s = "queue_s", mark_s
    if (mark_s := attempt.eligible_s) is not None:
        sums[before] += mark_s - at_s
        before, at_s = "connect_s" if attempt.connected_s is None else "grant_s", mark_s
        if (mark_s := attempt.slot_s) is not None:
            sums["slot_s"] += mark_s - at_s
            at_s = mark_s
        if (mark_s := attempt.ahead_s) is not None:
            sums["grant_s"] += mark_s - at_s
            at_s = mark_s
        if (mark_s := attempt.connected_s) is not None:
            sums["connect_s"] += mark_s - at_s
            at_s = mark_s
        if (mark_s := attempt.granted_s) is not None:
            sums["grant_s"] += mark_s - at_s
            at_s = mark_s
        if sent_s is not None:
            before = "send_s"
    if sent_s is None:
        sums[before] += complete_s - at_s
        return complete_s
    sums[before] += sent_s - at_s
    before, at_s = "first_byte_s", sent_s
    if (mark_s := attempt.first_byte_s) is not None:
        sums[before] += mark_s - at_s
        before, at_s = "answer_s", mark_s
        if (mark_s := attempt.first_token_s) is not None:
            sums["first_token_s"] += mark_s - at_s
            at_s = mark_s
    sums[before] += complete_s - at_s
    return complete_s
