"""Defines all errors, as a tree grouped by what to do about an error.

RedlineError
  ConfigError            fix the settings or the input, then run again
  CallError              an attempt at a call failed, or the call cannot be sent
    Withdrawn            the call was taken back before it was written, to be sent elsewhere
    Retryable            the same call may succeed later
      RateLimited        429, a 402, 403 or 498 that asks redline to wait, or a full queue
      TimedOut           a timeout expired; `phase` says which
      ServerFailed       408, 409, 424, 425, 499, 5xx, or an answer that is marked as broken off
      Disconnected       the connection was refused, reset or closed early
      BadReply           a response that cannot be read; final after two retries
    Final                a retry of the same call cannot succeed
      Rejected           any other 3xx or 4xx, or rejected by a function or by --fail-on
        BadRow           the row cannot be read, or no request can be made from it; nothing was sent
        BadTemplate      a template fails on the row; nothing was sent
      OverLimit          the call is too large for a limit, even if nothing else is sent
      Refused            401, or a proxy's 407: the key or password is refused; stops the run
      Unpaid             no credit, or a spend limit is reached; stops the run
      BudgetSpent        the run's own budget is spent; stops the run
      Unpriced           no price is known, so the budget cannot be enforced; stops the run
  NoEndpoint             no endpoint works, or the shared limits cannot be used; stops the run
  TooManyFailures        rows fail at the rate of --stop-at-error-rate; stops the run
  WaitTooLong            the next call would wait longer than --longest-wait; stops the run
  JournalError           the results file cannot be trusted or written; stops the run

A provider's own error code, its message or an `x-should-retry` header may override the status; see
`apis.errors.status`. Of several endpoints, one that refuses the key or has no credit gets no more
calls; the run stops once none is left.

Every error says what happened, and most errors also say where, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar


class RedlineError(Exception):
    """Base of all errors. what: what happened; where: where it happened; hint: what to do next.

    stops_run: True if a row that fails with this error ends the run, because other rows would fail
    as well; the row stays unfinished.
    """

    stops_run: ClassVar[bool] = False

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    @property
    def kind(self) -> str:
        """The error's name in result files: `rate_limited`, `timed_out`, ..."""
        name = type(self).__name__
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")

    def __str__(self) -> str:
        """Returns the message: what happened, then where in parentheses, then the hint."""
        text = f"{self.what} ({self.where})" if self.where else self.what
        return f"{text}: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[RedlineError], args: tuple[object, ...], state: dict[str, object]
) -> RedlineError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(RedlineError):
    """The settings or the input cannot be used.

    Most such errors occur before anything is sent. Some end a run that has begun, for example if
    the first rows all fail, or if the input breaks off.
    """


class JournalError(RedlineError):
    """The results file cannot be trusted or written."""


class NoEndpoint(RedlineError):
    """No call can be sent: no endpoint works, or the shared limits cannot be used."""

    stops_run = True


class TooManyFailures(RedlineError):
    """The latest rows fail at the rate that ends the run (`--stop-at-error-rate`), or more."""


class WaitTooLong(RedlineError):
    """No call can be sent for `wait_s` seconds, more than the run may wait (`--longest-wait`)."""

    def __init__(self, what: str, *, wait_s: float, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.wait_s = wait_s


class CallError(RedlineError):
    """An attempt at a call failed, or the call cannot be sent.

    status: the HTTP status of the response, or of the error that the response contains; None
    without a response, and for most answers that broke off or cannot be read.
    """

    _body: bytes | Callable[[], bytes] = b""
    # False if a full queue refused the call, or if the call waited in a queue for too long.
    is_admitted = True

    def __init__(
        self, what: str, *, where: str = "", hint: str = "", status: int | None = None
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.status = status

    @property
    def body(self) -> bytes:
        """The body of the HTTP response that this error is about, at most 64 KiB; b"" if none.

        Also b"" once the attempt is retried. Secrets in the body are masked as in the message.
        """
        body = self._body
        if not isinstance(body, bytes):
            body = self._body = body()
        return body

    def keep_body(self, body: bytes | Callable[[], bytes]) -> None:
        """Sets `body`. A function is called at the first read: masking a long body is slow."""
        self._body = body

    def __reduce__(self) -> tuple[object, ...]:
        self.keep_body(self.body)
        return super().__reduce__()


class Withdrawn(CallError):
    """A pool or the gateway took the call back before it was written, to send it elsewhere.

    A withdrawn send does not count as an attempt, and uses up no retry. Closing a backend also
    withdraws the calls that wait at it.
    """


class Retryable(CallError):
    """The same call may succeed later.

    retry_after_s: the seconds that the server asks the client to wait; None if it does not ask.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        hint: str = "",
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(what, where=where, hint=hint, status=status)
        self.retry_after_s = retry_after_s


class RateLimited(Retryable):
    """A limit was exceeded (HTTP 429, 402 or 403 with a wait, Groq's 498), or a queue is full."""


class ServerFailed(Retryable):
    """HTTP 408, 409, 424, 425, 499 or 5xx, or an answer that the server marks as broken off."""


class Disconnected(Retryable):
    """The connection was refused, reset, or closed before the response was complete.

    was_sent: False if no connection was made, so the server received no part of the request.
    """

    was_sent = True


class BadReply(Retryable):
    """A response that cannot be read: not valid HTTP, not JSON, or not in the requested format.

    Also an error inside a response with HTTP 200, if it has neither a status nor a known code.
    """


class TimedOut(Retryable):
    """A timeout expired.

    phase: which timeout expired: `connect`, `first_byte`, `attempt`, `row` or `run`. after_s: its
    length in seconds; None if only the time of its expiry is known.
    """

    def __init__(
        self, phase: str, after_s: float | None = None, *, where: str = "", hint: str = ""
    ) -> None:
        bound = "in time" if after_s is None else f"within {after_s:g} s"
        super().__init__(f"{_AWAITED[phase]} {bound} ({phase} timeout)", where=where, hint=hint)
        self.phase = phase
        self.after_s = after_s


_AWAITED = {
    "connect": "no connection",
    "first_byte": "no first byte",
    "attempt": "no complete answer",
    "row": "no success",
    "run": "the run did not end",
}


class Final(CallError):
    """A retry of the same call cannot succeed."""


class Rejected(Final):
    """The endpoint, a user's function, or redline itself rejected this row for good."""


class BadRow(Rejected):
    """The row cannot be read, or no request can be made from it. Nothing was sent."""


class BadTemplate(Rejected):
    """A template fails on the row, or its result is not JSON. Nothing was sent."""


class OverLimit(Final):
    """The call is too large for one of the limits, even if nothing else is sent."""


class Refused(Final):
    """The endpoint or the proxy refuses the credentials, so no row can succeed there."""

    stops_run = True


class Unpaid(Final):
    """The account is out of credit or over a spend limit, so no row can succeed with it."""

    stops_run = True


class BudgetSpent(Final):
    """The call may cost more than is left of the run's budget, or its cost cannot be recorded."""

    stops_run = True


class Unpriced(Final):
    """The run has a budget in dollars, but the price of the call's model is unknown."""

    stops_run = True


def check_known(what: str, name: str, known: Iterable[str]) -> None:
    """Raises ConfigError if `name` is not in `known`. what: the kind of name, for the message."""
    if name not in known:
        raise ConfigError(
            f"unknown {what}: {name}", hint=nearest(name, known) or f"one of {', '.join(known)}"
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns `did you mean X?` if a known name differs only by typos, otherwise an empty string.

    A merely similar name is not suggested: a wrong hint is worse than none. To save time, a known
    name whose length differs by more than the allowed number of typos is not compared.
    """
    slips = {
        each: _slips(name.lower(), each.lower())
        for each in known
        if abs(len(name) - len(each)) <= _most_slips(name, each)
    }
    close = min(slips, key=slips.__getitem__, default="")
    return f"did you mean {close}?" if close and slips[close] <= _most_slips(name, close) else ""


def _most_slips(name: str, known: str) -> int:
    """Returns the most typos allowed: one per four letters, at least one, but never all letters."""
    return min(max(1, min(len(name.strip("-")), len(known.strip("-"))) // 4), len(name) - 1)


def _slips(one: str, other: str) -> int:
    """Counts the letters that were omitted, added, replaced or swapped with their neighbour.

    This is the optimal string alignment distance.
    """
    before, last = [0] * (len(other) + 1), list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        line = [row]
        for column, known in enumerate(other, 1):
            cost = min(last[column] + 1, line[-1] + 1, last[column - 1] + (letter != known))
            is_swap = row > 1 and column > 1 and one[row - 2 : row] == known + other[column - 2]
            line.append(min(cost, before[column - 2] + 1) if is_swap else cost)
        before, last = last, line
    return last[-1]
