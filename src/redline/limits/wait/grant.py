"""Represents the permission to send one call."""

from __future__ import annotations

import math
from typing import Any, Protocol

import msgspec

from redline.errors import ConfigError
from redline.limits.rule import Cost
from redline.structs import check_number, mutable


class Issuer(Protocol):
    """Issues grants, and is notified of what happens to their calls."""

    def mark_sent(self, taken: Any, now_s: float) -> None: ...
    def give_back(self, taken: Any) -> None: ...
    def settle(self, taken: Any, used: Cost) -> None: ...
    def replied(self, taken: Any, took_s: float, sent_s: float, used: Cost | None) -> None: ...


@mutable
class Grant(msgspec.Struct, eq=False, gc=False):
    """Permission to send one call now. Ends with exactly one of `sent` and `release`.

    taken: what the grant took from the limits; None once released. waited_s: how long the caller
    waited for the grant. sent_s: when the call was written; None before that. until_s: the latest
    time at which the call may be written; after that, the grant must be released.
    """

    _issuer: Issuer
    taken: Any
    cost: Cost
    waited_s: float
    sent_s: float | None = None
    until_s: float = math.inf

    def sent(self, now_s: float) -> None:
        """Records that the call was written at `now_s`; the windows count it from then."""
        if self.sent_s is None and self.taken is not None:
            self.sent_s = now_s
            self._issuer.mark_sent(self.taken, now_s)

    def release(self) -> None:
        """Releases what the grant took: the call was not written. Does nothing after `sent`."""
        if self.sent_s is None and self.taken is not None:
            taken, self.taken = self.taken, None
            self._issuer.give_back(taken)

    def settle(self, used: Cost | int) -> None:
        """Replaces the call's estimate with its usage: a Cost, or the sum of its tokens.

        Does nothing before `sent`; a later value replaces an earlier one. Raises ConfigError if
        `used` is neither a Cost nor a finite number, or if a number of tokens is below 0.
        """
        if self.sent_s is None:
            return
        if not isinstance(used, Cost):
            check_number("the usage of a call", used)
            # A sum does not show its parts: input and output keep the ratio of their estimates.
            share = used / self.cost.tokens if self.cost.tokens else 1.0
            input_tokens = round(self.cost.input_tokens * share) if self.cost.tokens else used
            used = Cost(input_tokens, used - input_tokens)
        if not min(used.input_tokens, used.output_tokens) >= 0:
            raise ConfigError(f"the tokens of a call must be 0 or more, not {used.tokens}")
        self._issuer.settle(self.taken, used)

    def replied(self, took_s: float, used: Cost | None = None) -> None:
        """Records that the first byte of the answer came `took_s` seconds after the write.

        took_s: without the server's processing time, if the server reports it. took_s bounds the
        delay of the call to the server, from which the guard is measured (limits/rule/guard.py).
        used: see `settle`; None if not known yet.
        """
        sent_s = self.sent_s
        if sent_s is not None:
            self._issuer.replied(self.taken, took_s, sent_s, used)


# Tracked by the garbage collector, because limiter and grant refer to each other: otherwise neither
# would ever be freed.
class FreeGrant(Grant, gc=True):
    """Permission to send any number of calls. It took nothing, so nothing must be recorded."""

    def sent(self, now_s: float) -> None: ...
    def release(self) -> None: ...
    def settle(self, used: Cost | int) -> None: ...
    def replied(self, took_s: float, used: Cost | None = None) -> None: ...
