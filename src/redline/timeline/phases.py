"""Adds up how long calls spent in each phase, from their start and end and their attempts' marks.

The time from the beginning of a call to the first mark of its first attempt is the client's own, or
unattributed if earlier attempts are no longer recorded. The time from the end of its last attempt
to its outcome is the client's own.

An attempt has a mark for each thing it waited for, and no mark for what was available at once:

  mark         the phase that ends with it
  queued       -
  eligible     queue
  slot         slot
  ahead        grant: the wait to become one of the few calls that may get ready for a grant
  connected    connect
  granted      grant
  sent         send
  first byte   first byte
  first token  first token, of a stream
  complete     answer

The time between two marks belongs to the phase of the later mark, so the phases of an attempt add
up to its duration. Backoff is the time between two attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from redline.timeline.window import Phases
from redline.waist import MOST_TRIED, Attempt

# An ended call: when its row was taken, when it got its outcome (both monotonic), and its attempts.
Ended = tuple[float, float, Sequence[Attempt]]


def phases_of(ended: Iterable[Ended]) -> Phases:
    """Returns the sum of each phase over these calls."""
    sums = dict.fromkeys(Phases.__struct_fields__, 0.0)
    for begun_s, ended_s, tried in ended:
        # A call with the maximum number of recorded attempts may have had earlier ones.
        before, at_s = "client_s" if len(tried) < MOST_TRIED else "unattributed_s", begun_s
        for attempt in tried:
            at_s = _add(sums, attempt, before, at_s)
            before = "backoff_s"
        sums["client_s"] += ended_s - at_s
    return Phases(**{name: max(0.0, spent_s) for name, spent_s in sums.items()})


def _add(sums: dict[str, float], attempt: Attempt, before: str, at_s: float) -> float:
    """Adds the phases of an attempt to `sums`; returns when the attempt ended.

    before: the phase up to its first mark. at_s: when that phase began. An attempt whose request
    was not written failed while it waited for its next step. The marks are written out, because a
    loop over them takes three times as long.
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
