"""Converts exceptions of a user's own function to errors of the call."""

from __future__ import annotations

from redline.errors import CallError, Disconnected, Rejected, TimedOut
from redline.process import ends_task


def call_error_of(
    error: BaseException, label: str, *, after_s: float | None = None, what: str = "raised"
) -> CallError | None:
    """Returns the CallError for an exception of a user's function; None if it is kept as it is.

    A CallError, this task's cancellation and the end of the process are kept: the caller raises
    them. TimeoutError and ConnectionError become retryable errors. Any other exception rejects the
    call, so that a defect in the function fails only its row.
    after_s: the timeout in seconds of a TimeoutError, None if unknown. what: the message's verb,
    `raised` or `returned`.
    """
    said = f"{type(error).__name__}: {error}"
    match error:
        case CallError():
            return None
        case TimeoutError():
            return TimedOut("attempt", after_s)
        case ConnectionError():
            return Disconnected(said)
    return None if ends_task(error) else Rejected(f"{label} {what} {said}")
