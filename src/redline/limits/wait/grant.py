"""Leave to send one call."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from redline.limits.rule import Cost


class Issuer(Protocol):
    """What gives grants, and is notified of what became of each."""

    def mark_sent(self, taken: Any, now_s: float) -> None: ...
    def give_back(self, taken: Any) -> None: ...
    def settle(self, taken: Any, used: Cost) -> None: ...
    def replied(self, taken: Any, took_s: float, sent_s: float) -> None: ...


class Grant(msgspec.Struct, eq=False, gc=False):
    """Leave to send one call now. Ends in exactly one of `sent` or `release`.

    taken: what it took from the limits. waited_s: how long it was waited for. sent_s: when the call
    was written, None before.
    """

    _issuer: Issuer
    taken: Any
    cost: Cost
    waited_s: float
    sent_s: float | None = None
    _is_open: bool = True

    def sent(self, now_s: float) -> None:
        """The call was written at `now_s`: the windows count from here."""
        if self._is_open:
            self._is_open = False
            self.sent_s = now_s
            self._issuer.mark_sent(self.taken, now_s)

    def release(self) -> None:
        """The call was not written: everything is given back. Does nothing after `sent`."""
        if self._is_open:
            self._is_open = False
            self._issuer.give_back(self.taken)

    def settle(self, used: Cost | int) -> None:
        """The call used `used` in place of its estimate: tokens by kind, or their sum.

        0 or more. Does nothing before `sent`; a later one takes the place of an earlier one.
        """
        if self.sent_s is None:
            return
        if not isinstance(used, Cost):
            # A sum says nothing of its parts: input and output limits keep their estimates' ratio.
            share = used / self.cost.tokens if self.cost.tokens else 1.0
            input_tokens = round(self.cost.input_tokens * share) if self.cost.tokens else used
            used = Cost(input_tokens, used - input_tokens)
        self._issuer.settle(self.taken, used)

    def replied(self, took_s: float) -> None:
        """The first byte of the answer came `took_s` after the write.

        Less the server's own time on it if the server states that. It proves how late the call can
        have reached the server, which is what the guard is for (limits/rule/guard.py).
        """
        if self.sent_s is not None:
            self._issuer.replied(self.taken, took_s, self.sent_s)


class FreeGrant(Grant):
    """Leave to send any number of calls: it took nothing, so nothing becomes of it."""

    def sent(self, now_s: float) -> None: ...
    def release(self) -> None: ...
    def settle(self, used: Cost | int) -> None: ...
    def replied(self, took_s: float) -> None: ...
