"""What an exception of a user's own function makes of its call."""

from __future__ import annotations

import asyncio

from redline.errors import CallError, Disconnected, Rejected, TimedOut


def call_error_of(
    error: BaseException, label: str, *, after_s: float | None = None, what: str = "raised"
) -> CallError | None:
    """The error of a call whose function has raised `error`; None for what passes as it is.

    A CallError passes, as do the cancellation of this task and the end of the process. Exceptions
    without a meaning here reject the call: a defect in the function fails its row and nothing else.
    after_s: how long a call took that raised a TimeoutError, None if that is not known. what: the
    function has done with the error.
    """
    said = f"{type(error).__name__}: {error}"
    match error:
        case CallError():
            return None
        case TimeoutError():
            return TimedOut("attempt", after_s)
        case ConnectionError():
            return Disconnected(said)
        case asyncio.CancelledError():
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return None
            # Not this call but something inside it was cancelled.
            return Rejected(f"{label} {what} CancelledError: {error}")
        case Exception():
            return Rejected(f"{label} {what} {said}")
    return None
