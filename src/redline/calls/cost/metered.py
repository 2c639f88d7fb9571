"""A backend within a budget: it reserves an attempt's worst case, and settles it afterwards.

  an attempt ends with                          spent is
  a reply and its usage                         what the usage costs
  a reply without a usage                       the worst case
  an HTTP error in place of an answer           nothing
  HTTP 504 or 524                               the worst case: the model may have continued
  anything else, once it was written            the worst case: it may have been billed
  anything else, before that                    nothing

An attempt that does not fit waits, in order of arrival, until others are settled. If none is in
flight, it can never fit: the budget is then spent for all waiting and later attempts.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

import msgspec

from redline.apis import api_of, read_usage
from redline.calls.cost.prices import Price, Prices, how_to_price, unpriced
from redline.calls.cost.spending import NOTHING, Amount, Spending, dollars_text
from redline.calls.tokens import TokenEstimator, Worst, worst_of
from redline.clock import SYSTEM, Clock
from redline.errors import BadRow, BudgetSpent, CallError, Unpriced
from redline.waist import Around, Backend, Call, Load, Outcome, Reply, Request, Sink, failed

_FREE = Price(input=0, cached_input=0, output=0)
# A gateway timed out; the model behind it may still have answered, and been paid for that.
_MAY_BE_BILLED = frozenset({504, 524})


class Account(Protocol):
    """A record of the sum that outlives the process."""

    def keep(self, committed: Amount) -> None:
        """Records the amount that is spent or reserved. Raises OSError."""


class _Attempt(msgspec.Struct):
    """One attempt: its worst case, its price, and how many times its request was written."""

    worst: Amount
    bound: Worst
    price: Price
    writes: int = 0


class Metered(Around):
    """A backend that sends only what `spending` has room for, and counts what each call costs.

    account: updated before each write and after each settlement; None for no record.
    waiting: the number of calls that wait for reservations of others to be settled.
    """

    def __init__(
        self,
        backend: Backend,
        spending: Spending,
        prices: Prices,
        *,
        account: Account | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(backend)
        self.spending = spending
        self._account = account
        self._prices = prices
        self._clock = clock
        self._estimator = TokenEstimator()
        self.waiting = 0
        # The first call in line holds the turn until it has what it needs.
        self._turn = asyncio.Lock()
        self._settled = asyncio.Event()
        self._open = 0
        # The part of what is reserved that belongs to written requests.
        self._written = NOTHING
        # Input tokens beyond the bound: a system prompt that the server adds.
        self._hidden_tokens = 0
        self._is_spent = False
        # The part of what is spent that is recorded in another file than the account's.
        self._elsewhere = NOTHING

    def load(self, now_s: float, request: Request | None = None) -> Load:
        load = super().load(now_s, request)
        if not self.waiting and not self._is_spent:
            return load
        return msgspec.structs.replace(
            load,
            waiting=load.waiting + self.waiting,
            room_s=max(load.room_s, math.ulp(0.0)),
            binds="the budget",
        )

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        try:
            attempt = self._attempt(request)
            waited_since_s = await self._reserve(attempt.worst, call)
        except CallError as error:
            return failed(error)
        outcome: Outcome | None = None
        teaches = attempt.bound.output_tokens is None
        sending = self._estimator.begin(request) if teaches else None
        begun_s = self._clock.now_s()
        call.refused = 0
        call.on_write = lambda: self._write(attempt, call)
        try:
            outcome = await self._inner.send(request, call, sink)
        finally:
            call.on_write = None
            if sending is not None:
                reply = None if outcome is None else outcome.reply
                self._estimator.end(sending, reply, self._clock.now_s() - begun_s)
            self._settle(attempt, call, request, outcome)
        if waited_since_s is not None:
            outcome.was_queued(waited_since_s)
        return outcome

    def batched(self, request: Request) -> Amount:
        """Returns the most that the request can cost in a batch. Raises CallError if unknown."""
        return self._attempt(request).worst.batched

    def cost_batched(self, request: Request, reply: Reply | None) -> Amount:
        """Returns the cost of a request in a batch. reply: None for an error, which is free."""
        if reply is None:
            return NOTHING
        attempt = self._attempt(request)
        if attempt.bound.output_tokens is None:
            # Later batches reserve outputs as long as those of earlier ones.
            self._estimator.end(self._estimator.begin(request), reply, 1.0)
        return self._actual(attempt, request, Outcome(status="succeeded", reply=reply)).batched

    def reserve(self, worst: Amount) -> bool:
        """Reserves `worst`; False if it does not fit. The caller settles it and records it."""
        return not self.waiting and not self._is_spent and self.spending.reserve(worst)

    def settle(self, reserved: Amount, actual: Amount) -> None:
        """Settles an amount that `reserve` has reserved."""
        self._elsewhere = self._elsewhere.plus(actual)
        self.spending.settle(reserved, actual)

    def recall(self, spent: Amount, reserved: Amount) -> None:
        """Adds what earlier runs have recorded elsewhere as spent and as reserved."""
        self.spending.recall(spent, reserved)
        self._elsewhere = spent

    def _attempt(self, request: Request) -> _Attempt:
        """Returns an attempt with its worst case. Raises CallError if that is unknown."""
        model = request.model
        price = self._prices.find(model)
        if price is None:
            if self.spending.allowance.picodollars is not None:
                raise _no_price(model)
            price = _FREE
        try:
            bound = worst_of(request)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRow(f"the request cannot be written as JSON: {error}") from error
        output_tokens = bound.output_tokens
        if output_tokens is None:
            output_tokens = self._estimator.most(request).output_tokens
        input_tokens = bound.input_tokens + self._hidden_tokens
        picodollars = price.most(input_tokens, output_tokens, may_write=bound.may_write)
        return _Attempt(Amount(picodollars, input_tokens + output_tokens), bound, price)

    async def _reserve(self, worst: Amount, call: Call) -> float | None:
        """Reserves `worst`, waiting for others if needed; returns when the wait began, if any.

        Raises BudgetSpent, or TimedOut for a late row.
        """
        if not self.waiting and self._take(worst):
            return None
        since_s = self._clock.now_s()
        self.waiting += 1
        try:
            await call.in_time(self._take_in_turn(worst), self._clock)
        finally:
            self.waiting -= 1
        return since_s

    async def _take_in_turn(self, worst: Amount) -> None:
        """Reserves `worst` once it fits and all earlier calls have theirs. Raises BudgetSpent."""
        async with self._turn:
            while not self._take(worst):
                if not self._open:
                    # A smaller row must not overtake the one that did not fit.
                    self._is_spent = True
                if self._is_spent:
                    raise self.spent(worst)
                self._settled.clear()
                await self._settled.wait()

    def _take(self, worst: Amount) -> bool:
        if self._is_spent or not self.spending.reserve(worst):
            return False
        self._open += 1
        return True

    def _close(self, reserved: Amount, actual: Amount) -> None:
        self._open -= 1
        self.spending.settle(reserved, actual)
        self._settled.set()

    def _write(self, attempt: _Attempt, call: Call) -> None:
        """Records a request that is about to be written. Raises BudgetSpent if that fails.

        A transport may write a request twice, if its first connection broke: each may be billed.
        """
        worst = attempt.worst
        if attempt.writes and call.refused:
            # The amount recorded for the refused request now counts for this one.
            call.refused -= 1
            return
        if attempt.writes and not self.spending.reserve(worst):
            raise self.spent(worst)
        self._written = self._written.plus(worst)
        try:
            self._keep()
        except OSError as error:
            self._written = self._written.minus(worst)
            if attempt.writes:
                self.spending.settle(worst, NOTHING)
            raise BudgetSpent(
                f"the budget cannot be enforced: spending cannot be recorded: {error.strerror}",
                hint="make room on the disk, then run the same command again",
            ) from error
        attempt.writes += 1

    def _keep(self) -> None:
        if self._account is not None:
            own = self.spending.spent.minus(self._elsewhere)
            self._account.keep(own.plus(self._written))

    def _settle(
        self, attempt: _Attempt, call: Call, request: Request, outcome: Outcome | None
    ) -> None:
        """Settles an attempt that is over. outcome: None for a cancelled one."""
        worst = attempt.worst
        if not attempt.writes:
            self._close(worst, NOTHING)
            return
        for _ in range(attempt.writes - 1):
            # The answers to the writes before the last one were not read.
            self._written = self._written.minus(worst)
            self.spending.settle(worst, worst)
        self._written = self._written.minus(worst)
        # The last write was refused, and no other endpoint has answered since.
        actual = NOTHING if call.refused else self._actual(attempt, request, outcome)
        self._close(worst, actual)
        try:
            self._keep()
        except OSError:
            # The file states more than is spent; the next write fails likewise, and reports it.
            pass

    def _actual(self, attempt: _Attempt, request: Request, outcome: Outcome | None) -> Amount:
        """Returns the cost of a written attempt, by the table at the top of this file."""
        if outcome is None:
            return attempt.worst
        error = outcome.error
        if error is not None and outcome.reply is None:
            return attempt.worst if may_be_billed(error) else NOTHING
        usage = None
        if outcome.reply is not None:
            has_output = api_of(request.url).has_output
            usage = read_usage(outcome.reply.usage, has_output=has_output)
        if usage is None:
            return attempt.worst
        hidden = usage.input_tokens - attempt.bound.input_tokens
        self._hidden_tokens = max(self._hidden_tokens, hidden)
        price = self._prices.at(outcome.endpoint, request.model) or attempt.price
        return Amount(price.of(usage), usage.tokens)

    def spent(self, worst: Amount) -> BudgetSpent:
        """Returns the error of a call that may cost `worst` and is not sent."""
        spending = self.spending
        allowance, spent, parts, flags = spending.allowance, spending.spent, [], []
        if allowance.picodollars is not None:
            most = dollars_text(allowance.picodollars)
            parts.append(f"{dollars_text(spent.picodollars)} of {most}")
            flags.append("--budget")
        if allowance.tokens is not None:
            parts.append(f"{spent.tokens:,} of {allowance.tokens:,} tokens")
            flags.append("--budget-tokens")
        may_cost = (
            dollars_text(worst.picodollars)
            if allowance.picodollars is not None
            else f"{worst.tokens:,} tokens"
        )
        return BudgetSpent(
            f"the budget is spent: {' and '.join(parts)}, and the next call may cost {may_cost}",
            hint=f"raise {' or '.join(flags)}, then run the same command again",
        )


def may_be_billed(error: Exception) -> bool:
    """Whether a request that was written and ended with this error may have been billed."""
    status = error.status if isinstance(error, CallError) else None
    return status is None or status < 300 or status in _MAY_BE_BILLED


def _no_price(model: object) -> Unpriced:
    if isinstance(model, str):
        return Unpriced(unpriced(model), hint=how_to_price(model))
    return Unpriced(
        "a budget in money needs the model of each row, and this one names none",
        hint="name it with --model",
    )
