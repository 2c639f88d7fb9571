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

from collections.abc import Sequence
from itertools import chain, pairwise
from operator import attrgetter, itemgetter

from redline.timeline.window import Phases
from redline.waist import Attempt

_SENT, _FIRST_BYTE = attrgetter("sent_s"), attrgetter("first_byte_s")
_COMPLETE, _ELIGIBLE = attrgetter("complete_s"), attrgetter("eligible_s")
_QUEUED, _FIRST_TOKEN = attrgetter("queued_s"), attrgetter("first_token_s")
_BEGUN, _ENDED, _TRIED = itemgetter(0), itemgetter(1), itemgetter(2)
_FIRST, _LAST = itemgetter(0), itemgetter(-1)
# The number of attempts that a call keeps: a call with as many may have had earlier ones.
_MOST_TRIED = 32

# An ended call: when its row was taken, when it got its outcome, and its attempts.
Ended = tuple[float, float, Sequence[Attempt]]


def phases_of(ended: Sequence[Ended]) -> Phases:
    """The sums of all phases over these calls.

    Attempts without waits, which are the majority, are summed in C.
    """
    all_tried = list(map(_TRIED, ended))
    sums = _of_attempts(list(chain.from_iterable(all_tried)))
    most = max(map(len, all_tried), default=0)
    whole_s = sum(map(_ENDED, ended)) - sum(map(_BEGUN, ended))
    sums["client_s"] = whole_s - _tried_s(list(filter(None, all_tried)))
    if most >= _MOST_TRIED:
        for begun_s, _, tried in ended:
            if len(tried) >= _MOST_TRIED:
                sums["client_s"] -= _start_s(tried[0]) - begun_s
    if most > 1:
        for tried in all_tried:
            for earlier, later in pairwise(tried):
                _add(sums, "backoff_s", earlier.complete_s, _start_s(later))
    found = {name: max(0.0, value) for name, value in sums.items()}
    return Phases(**found, unattributed_s=max(0.0, whole_s - sum(found.values())))


def _tried_s(asked: Sequence[Sequence[Attempt]]) -> float:
    """Seconds from the first mark of the first attempt of each call to the end of its last one."""
    first = list(map(_FIRST, asked))
    began = list(map(_SENT, first))
    if None in began or any(map(_ELIGIBLE, first)) or any(map(_QUEUED, first)):
        began = list(map(_start_s, first))
    return float(sum(map(_COMPLETE, map(_LAST, asked))) - sum(began))


def _of_attempts(attempts: Sequence[Attempt]) -> dict[str, float]:
    """The sums of the phases within attempts, by field name."""
    sent, first = list(map(_SENT, attempts)), list(map(_FIRST_BYTE, attempts))
    complete = list(map(_COMPLETE, attempts))
    sums: dict[str, float] = {}
    if None in sent or None in first:
        for attempt in attempts:
            _add_answer(sums, attempt)
    else:
        sums["first_byte_s"] = sum(first) - sum(sent)
        sums["answer_s"] = sum(complete) - sum(first)
        for attempt in filter(_FIRST_TOKEN, attempts):
            _add_token(sums, attempt)
    for attempt in filter(_ELIGIBLE, attempts):
        _add_waits(sums, attempt)
    for attempt in filter(_QUEUED, attempts):
        _add(sums, "queue_s", attempt.queued_s, _began_s(attempt))
    return sums


def _start_s(attempt: Attempt) -> float:
    """The time of an attempt's first mark."""
    return _began_s(attempt) if attempt.queued_s is None else attempt.queued_s


def _began_s(attempt: Attempt) -> float:
    """When the attempt began at its endpoint."""
    if attempt.eligible_s is not None:
        return attempt.eligible_s
    return attempt.complete_s if attempt.sent_s is None else attempt.sent_s


def _add_waits(sums: dict[str, float], attempt: Attempt) -> None:
    """Adds an attempt's waits before the write, or until it failed."""
    at_s = attempt.eligible_s
    for name, mark_s in (
        ("slot_s", attempt.slot_s),
        ("grant_s", attempt.ahead_s),
        ("connect_s", attempt.connected_s),
        ("grant_s", attempt.granted_s),
        ("send_s", attempt.sent_s),
    ):
        if mark_s is not None:
            _add(sums, name, at_s, mark_s)
            at_s = mark_s
    if attempt.sent_s is None:
        # The attempt failed while it waited for the next step.
        is_connected = attempt.connected_s is not None
        _add(sums, "grant_s" if is_connected else "connect_s", at_s, attempt.complete_s)


def _add_answer(sums: dict[str, float], attempt: Attempt) -> None:
    """Adds the phases from the write on, whichever marks exist."""
    first_s, complete_s = attempt.first_byte_s, attempt.complete_s
    _add(sums, "first_byte_s", attempt.sent_s, complete_s if first_s is None else first_s)
    _add(sums, "answer_s", first_s, complete_s)
    _add_token(sums, attempt)


def _add_token(sums: dict[str, float], attempt: Attempt) -> None:
    """Counts the time to the first token of a streamed answer separately from its answer time."""
    _add(sums, "first_token_s", attempt.first_byte_s, attempt.first_token_s)
    _add(sums, "answer_s", attempt.first_token_s, attempt.first_byte_s)


def _add(sums: dict[str, float], name: str, from_s: float | None, to_s: float | None) -> None:
    """Adds the time between two marks, if the attempt has both."""
    if from_s is not None and to_s is not None:
        sums[name] = sums.get(name, 0.0) + to_s - from_s
