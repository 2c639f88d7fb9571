"""Converts exceptions of a user's own function to errors of the call."""

from __future__ import annotations

from redline.errors import CallError, Disconnected, Rejected, TimedOut
from redline.process import ends_task, first_of


def call_error_of(
    error: BaseException, label: str, *, after_s: float | None = None, what: str = "raised"
) -> CallError | None:
    """Returns the CallError for an exception of a user's function; None if it is kept as it is.

    A CallError, this task's cancellation and the end of the process are kept: the caller raises
    them. TimeoutError and ConnectionError become retryable errors. Any other exception rejects the
    call, so that a defect in the function fails only its row. A group counts as its first one.
    after_s: the timeout in seconds of a TimeoutError, None if unknown. what: the message's verb,
    `raised` or `returned`.
    """
    first = first_of(error)
    said = f"{type(first).__name__}: {first}"
    match first:
        case CallError():
            return None if first is error else first
        case TimeoutError():
            return TimedOut("attempt", after_s)
        case ConnectionError():
            return Disconnected(said)
    return None if ends_task(first) else Rejected(f"{label} {what} {said}")
