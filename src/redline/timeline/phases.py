"""How long calls spent in each phase, by when they began and ended and the marks of their attempts.

The time from the begin of a call to the first mark of its first attempt is the client's own, and so
is that from the end of its last attempt to its outcome.

An attempt has a mark for what it waited for, and none for what was there at once:

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

The time up to a mark belongs to its phase, from the last mark before it on. So the phases of an
attempt add up to its whole time, and back-off is the time between two attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from redline.timeline.window import Phases
from redline.waist import Attempt

# The number of attempts that a call keeps: a call with as many may have had earlier ones.
_MOST_TRIED = 32
# The marks of an attempt that waits, up to its write, in their order.
_WAITS = (
    ("slot_s", "slot_s"),
    ("ahead_s", "grant_s"),
    ("connected_s", "connect_s"),
    ("granted_s", "grant_s"),
    ("sent_s", "send_s"),
)

# An ended call: when its row was taken, when it got its outcome, and its attempts.
Ended = tuple[float, float, Sequence[Attempt]]


def phases_of(ended: Iterable[Ended]) -> Phases:
    """The sums of all phases over these calls."""
    sums = dict.fromkeys(Phases.__struct_fields__, 0.0)
    for begun_s, ended_s, tried in ended:
        before, at_s = "client_s" if len(tried) < _MOST_TRIED else "unattributed_s", begun_s
        for attempt in tried:
            for name, mark_s in _steps(attempt, before):
                sums[name] += mark_s - at_s
                at_s = mark_s
            before = "backoff_s"
        sums["client_s"] += ended_s - at_s
    return Phases(**{name: max(0.0, spent_s) for name, spent_s in sums.items()})


def _steps(attempt: Attempt, before: str) -> Iterator[tuple[str, float]]:
    """Yields the marks of an attempt, each with the phase that it ends; `before` ends at the first.

    An attempt without a write has failed while it waited for the next step.
    """
    sent_s, first_s, complete_s = attempt.sent_s, attempt.first_byte_s, attempt.complete_s
    if attempt.queued_s is not None:
        yield before, attempt.queued_s
        before = "queue_s"
    if attempt.eligible_s is not None:
        yield before, attempt.eligible_s
        for mark, name in _WAITS:
            mark_s: float | None = getattr(attempt, mark)
            if mark_s is not None:
                yield name, mark_s
        if sent_s is None:
            yield "connect_s" if attempt.connected_s is None else "grant_s", complete_s
    else:
        yield before, complete_s if sent_s is None else sent_s
    if sent_s is None:
        return
    if first_s is None:
        yield "first_byte_s", complete_s
        return
    yield "first_byte_s", first_s
    if attempt.first_token_s is not None:
        yield "first_token_s", attempt.first_token_s
    yield "answer_s", complete_s
